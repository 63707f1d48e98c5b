#!/usr/bin/env python3
"""guards.py - which lock is over which field of gpusync.h: guards.txt says it, and a copy of the header checks it

    guards.py GPUSYNC_H --check          fields without a rule, and rules for what is not there; or nothing
    guards.py GPUSYNC_H --table          every field with its rule
    guards.py GPUSYNC_H --asked          every field whose accesses are checked, and every exempt function
    guards.py GPUSYNC_H OUT [TABLE]      the copy: each access to a field asks guards.h whether its rule allows it

An access is `p->field` or `p.field`, where p is of one of the structs, however the field is called elsewhere. It is a
read, a write (behind it stands an assignment, or beside it ++ or --), an atomic load, another atomic operation, or a
pointer (`&p->field`, outside of the macros of atomics).
"""

import os
import re
import sys
from collections import namedtuple

TABLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "guards.txt")
TOKEN = re.compile(r"""/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|[A-Za-z_]\w*|\.?\d(?:[eEpP][-+]|[\w.])*|\\\n|\s+|\.\.\.|->|"""
                   r"""\+\+|--|<<=|>>=|<<|>>|&&|\|\||[-+*/%&|^<>=!]=|.""", re.S)
ASSIGNS = ("=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>=", "++", "--")
LOADS = ("GPUSYNC__LOAD_SEQ", "__atomic_load_n")
# swap32, set_flag and come_in are functions around an atomic operation.
ATOMICS = re.compile(r"(GPUSYNC__(STORE|ADD|SUB|COUNT|SWAP)_\w+|__atomic_\w+|gpusync__(swap32|set_flag|come_in))$")
# What a struct's locks are called in guards.txt, and where they are.
LOCKS = {
    "device": {"device": "&p->lock", "graph": "&p->graph", "submission": "&p->submission_lock"},
    "queue": {"queue": "&p->waits.lock", "order": "&p->order", "device": "&p->device->lock", "graph": "&p->device->graph",
              "submission": "&p->device->submission_lock"},
    "timeline": {"timeline": "&p->waits.lock", "device": "&p->device->lock", "graph": "&p->device->graph"},
    "submission": {"order": "&p->work.queue->order", "queue": "&p->work.queue->waits.lock", "graph": "&p->device->graph"},
    "link": {"graph": "LOCKS_GRAPH", "queue": "LOCKS_QUEUE"},
    "line": {"graph": "LOCKS_GRAPH"},
    "listening": {"global": "LOCKS_GLOBAL"},
    "wait_list": {"list": "&p->lock"},
    "pool": {"submission": "LOCKS_SUBMISSION"},
    "owed": {"submission": "LOCKS_SUBMISSION"},
    "sticky": {"queue": "LOCKS_QUEUE"},
}
# What else makes an access right.
STATES = {"submission": {"making": "p->work.ticket == 0 && !p->open_buffer"}}
# The other words of a rule, and which accesses they allow.
ALLOWED = {"fixed": "how != 'w' && how != 'a'", "atomic": "how == 'l' || how == 'a'", "own": "true",
           "loads": "how == 'l'", "once": "how == 'l' || how == 'r'"}
Rule = namedtuple("Rule", "words more")


def read_table(path):
    """The structs (name -> C name), the rules (struct, field) -> Rule, and the functions that are exempt."""
    structs, rules, exempt, struct = {}, {}, {}, None
    for number, line in enumerate(open(path), 1):
        if line.startswith("struct "):
            _, struct, name = line.split()
            structs[struct] = name
        elif line.startswith("  ") and struct:
            words, _, fields = line.partition("--")[0].partition(":")
            rule = Rule(words.split()[0].split("|"), words.split()[1:])
            for word in rule.words + rule.more:
                if not (word in ALLOWED or word in LOCKS[struct] or word in STATES.get(struct, {})):
                    sys.exit("%s:%d: no such rule: %s" % (path, number, word))
            for field in fields.split():
                if (struct, field) in rules:
                    sys.exit("%s:%d: %s.%s has two rules" % (path, number, struct, field))
                rules[struct, field] = rule
        elif line.startswith("but "):
            head, _, why = line[4:].partition("--")
            function, _, fields = head.partition(":")
            exempt.setdefault(function.strip(), set()).update(fields.split())
            if not why.strip():
                sys.exit("%s:%d: no reason" % (path, number))
    return structs, rules, exempt


def fields_of(text, name):
    """The members of struct `name` in their order, without those that only keep others apart."""
    body = re.search(r"struct %s \{(.*?)\n\}" % name, text, re.S)[1]
    body = re.sub(r"/\*.*?\*/", " ", body, flags=re.S)
    found = []
    for declaration in body.split(";"):
        pointer = re.search(r"\(\*(\w+)\)", declaration)
        if pointer:
            found.append(pointer[1])
            continue
        for part in re.sub(r"\[[^\]]*\]", "", declaration).split(","):
            words = re.findall(r"\w+", part)
            if words and not re.match(r"pad\d*$", words[-1]):
                found.append(words[-1])
    return found


class Copy:
    """The header's tokens, from `begin` on with their accesses exchanged."""

    def __init__(self, text, fields):
        self.tokens = TOKEN.findall(text)
        self.code = [i for i, token in enumerate(self.tokens) if not (token.isspace() or token[:2] in ("/*", "\\\n"))]
        self.out = list(self.tokens)
        for at in range(1, len(self.code) - 1):
            if self.word(at) in ("->", ".") and self.word(at + 1) in fields:
                self.exchange(at)

    def word(self, at):
        return self.tokens[self.code[at]] if 0 <= at < len(self.code) else ""

    def base(self, at):
        """Where the expression in front of the operator at `at` begins; None: there is none."""
        at -= 1
        while True:
            if self.word(at) in ("]", ")"):
                closing = self.word(at)
                at = self.opening(at)
                if closing == "]" or (re.match(r"[A-Za-z_]\w*$", self.word(at - 1)) and
                                      self.word(at - 1) not in ("return", "if", "while", "sizeof", "switch")):
                    at -= 1
                    continue
                return at
            if not re.match(r"[A-Za-z_]\w*$", self.word(at)):
                return None
            if self.word(at - 1) in ("->", "."):
                at -= 2
                continue
            return at

    def opening(self, at):
        depth = 0
        while True:
            depth += self.word(at) in ("]", ")")
            depth -= self.word(at) in ("[", "(")
            if depth == 0:
                return at
            at -= 1

    def closing(self, at):
        depth = 0
        while True:
            depth += self.word(at) in ("[", "(")
            depth -= self.word(at) in ("]", ")")
            at += 1
            if depth == 0:
                return at

    def how(self, start, end):
        """'r', 'w', 'l', 'a' or 'p': see above. `end`: behind the field."""
        while self.word(end) in (".", "["):
            end = end + 2 if self.word(end) == "." else self.closing(end)
        if self.word(end) == "->":
            return "r"
        before = self.word(start - 1)
        if before == "&" and self.word(start - 2) in ("(", ",", "=", "return", "?", ":", "{", "&&", "||", "!", "==", "!="):
            opening = start - 2
            while self.word(opening) == "(" and self.word(opening - 1) == "(":
                opening -= 1
            call = self.word(opening - 1)
            if self.word(opening) == "(" and call in LOADS:
                return "l"
            if ATOMICS.match(call) or (self.word(start - 2) == "," and self.in_come_in(start)):
                return "a"
            return "p"
        if self.word(end) in ASSIGNS or before in ("++", "--"):
            return "w"
        return "r"

    def in_come_in(self, start):
        at, depth = start, 0
        while at > start - 20:
            at -= 1
            depth += self.word(at) == ")"
            depth -= self.word(at) == "("
            if depth < 0:
                return self.word(at - 1) == "gpusync__come_in"
        return False

    def exchange(self, at):
        start = self.base(at)
        if start is None or (self.word(at) == "." and self.word(at - 1) == ")" and self.base(at) < self.opening(at - 1)):
            return # in an initialiser, or of what a function returns
        if self.word(at + 2) == "(":
            return # a call: locks.h knows it by its words
        first, last = self.code[start], self.code[at + 1]
        base = "".join(self.out[first:self.code[at]])
        self.out[first] = "GUARDS(%s(%s), %s, '%s')" % (
            "" if self.word(at) == "->" else "&", base.rstrip(" "), self.word(at + 1), self.how(start, at + 2))
        for i in range(first + 1, last + 1):
            self.out[i] = ""


def condition(struct, word):
    """When a word of a rule allows an access, as C has it."""
    lock = LOCKS[struct].get(word)
    if lock:
        return "guards_hold%s(%s)" % ("_kind" if lock.startswith("LOCKS_") else "", lock)
    return ALLOWED.get(word) or STATES[struct][word]


def planted(text, structs, rules, exempt):
    """The header with every access exchanged. A function guards_STRUCT_FIELD stands behind each struct."""
    declared, checks, macros = [], {struct: [] for struct in structs}, []
    asked = sorted({field for (_, field), rule in rules.items() if rule.words != ["own"]})
    for field in asked:
        cases = []
        for struct, name in structs.items():
            rule = rules.get((struct, field))
            if not rule:
                continue
            function = "guards_%s_%s" % (struct, field)
            head = "static inline void %s(const void *at, char how, const char *function)" % function
            declared.append(head + ";")
            cases += ["struct %s *: %s" % (name, function), "const struct %s *: %s" % (name, function)]
            allowed = [condition(struct, word) for word in rule.words + rule.more]
            checks[struct].append(
                "%s\n{\n    static bool asked;\n    const struct %s *p = at;\n    guards_ask(&asked, \"field\", \"%s.%s\");\n    if (!(%s)) guards_wrong(\"%s\", \"%s\", how, function);\n    (void)p;\n}\n"
                % (head, name, struct, field, " || ".join(allowed), struct, field))
        macros.append("#define guards_of_%s(p, how) _Generic((p), %s, default: guards_none)((const void *)(p), how, __func__)"
                      % (field, ", ".join(cases)))
    lines = ['    {"%s", "%s", false}, \\' % (function, " %s " % " ".join(sorted(fields)) if fields else "")
              for function, fields in sorted(exempt.items())]
    prelude = ["#ifdef LOCKS_H", "#define GUARDS_EXEMPT \\", *lines, "", '#include "guards/guards.h"',
               *("struct %s;" % name for name in structs.values()), *declared, *macros, "#else",
               "#define GUARDS(p, field, how) ((p)->field)", "#endif", ""]
    begin = re.search(r"^/\* -+ >>objc", text, re.M).start()
    body = "".join(Copy(text[begin:], asked).out)
    for struct, name in structs.items():
        body = re.sub(r"struct %s \{.*?\n\}[^;]*;\n" % name,
                      lambda found: found[0] + "#ifdef LOCKS_H\n%s#endif\n" % "".join(checks[struct]), body, count=1, flags=re.S)
    return text[:begin] + "\n".join(prelude) + body


def main():
    text = open(sys.argv[1]).read()
    structs, rules, exempt = read_table(sys.argv[3] if len(sys.argv) > 3 else TABLE)
    wrong = []
    for struct, name in structs.items():
        fields = fields_of(text, name)
        wrong += ["%s.%s has no rule" % (struct, field) for field in fields if (struct, field) not in rules]
        wrong += ["%s.%s is not there" % (struct, field) for of, field in rules if of == struct and field not in fields]
    wrong += ["there is no function %s" % function for function in exempt if not re.search(r"\b%s\(" % function, text)]
    if sys.argv[2] == "--check":
        print("\n".join(wrong), end="\n" if wrong else "")
    elif sys.argv[2] == "--asked":
        print("\n".join(["field %s.%s" % of for of, rule in rules.items() if rule.words != ["own"]] +
                        ["but " + function for function in exempt]))
    elif sys.argv[2] == "--table":
        for struct, name in structs.items():
            for field in fields_of(text, name):
                rule = rules.get((struct, field))
                words = " ".join(["|".join(rule.words), *rule.more]) if rule else "no rule"
                print("%-11s %-22s %s" % (struct, field, words))
    else:
        open(sys.argv[2], "w").write(planted(text, structs, rules, exempt))


main()
