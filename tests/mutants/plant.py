#!/usr/bin/env python3
"""plant.py - the faults of list.txt and drawn.txt, in one copy of gpusync.h

    plant.py GPUSYNC_H --check          every text against the header; writes nothing
    plant.py GPUSYNC_H --list           number, kind, reason, test, function and words of each, with tabs in between
    plant.py GPUSYNC_H OUT              the header with all of them. The environment variable MUTANT chooses one
    plant.py GPUSYNC_H --seen FILE      writes into the lists what saw each: lines "NUMBER TEST"

Each text has to be in the header exactly as often as its list says. If it is not, this says which one and fails: then
the header has changed, and the author of the change decides what becomes of the fault.
"""

import bisect
import os
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
LISTS = [os.path.join(HERE, name) for name in ("list.txt", "drawn.txt")]
KINDS = ("equivalent", "race", "speed", "leak")
HEAD = re.compile(r"= (\d+) (\w+): (.+)$")
MARK = re.compile(r"<\[(.*?)=>(.*?)\]>", re.S)

# REACHED: a file of 8,192 bytes; byte N becomes 1 when the program comes to fault N. What is written stays, however it ends.
HOOK = """
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
static int gpusync__mutant_chosen = -1;
static unsigned char *gpusync__mutants_reached;
static __attribute__((constructor)) void gpusync__choose_mutant(void)
{
    const char *chosen = getenv("MUTANT"), *reached = getenv("REACHED");
    void *bytes = reached ? mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, open(reached, O_RDWR), 0) : MAP_FAILED;
    if (chosen) gpusync__mutant_chosen = atoi(chosen);
    if (bytes != MAP_FAILED) gpusync__mutants_reached = (unsigned char *)bytes;
}
static inline int gpusync__mutant(int number)
{
    if (gpusync__mutants_reached) gpusync__mutants_reached[number] = 1;
    return gpusync__mutant_chosen == number;
}
"""
HOOK_AFTER = "#include <stdint.h>\n" # inline functions of the public part have faults, too


class Mutant:
    def __init__(self, number, function, words):
        self.number, self.function, self.words = number, function, words
        self.seen, self.kind, self.reason, self.times, self.lines = "", "", "", 1, []

    def edits(self):
        """The text of the header, and what is exchanged in it: (from, to, what stands there instead, if the mutant is it)."""
        text, spots, at = "", [], 0
        marked = "\n".join(self.lines).lstrip()
        for mark in MARK.finditer(marked):
            text += marked[at:mark.start()]
            old, new = mark.group(1).strip(), mark.group(2).strip()
            spots.append((len(text), len(text) + len(old), new))
            text += old
            at = mark.end()
        return text + marked[at:], spots

    def planted(self, old, new):
        chosen = "gpusync__mutant(%d)" % self.number
        if old[-1:] in (";", "}"):
            if not new:
                return "{ if (!%s) { %s } }" % (chosen, old)
            return "{ if (%s) { %s } else { %s } }" % (chosen, new, old)
        return "(%s ? (%s) : (%s))" % (chosen, new, old)


def read_list(path):
    mutants, wrong = [], []
    for at, line in enumerate(open(path, encoding="utf-8").read().splitlines(), 1):
        head = HEAD.match(line)
        words = line.split(None, 1)
        if head:
            mutants.append(Mutant(int(head.group(1)), head.group(2), head.group(3)))
        elif line.startswith("= ") and mutants:
            wrong.append("%s:%d: no head of a fault" % (os.path.basename(path), at))
        elif not mutants:
            continue # the first lines tell how to read the rest
        elif line.startswith("| "):
            mutants[-1].lines.append(line[2:])
        elif line.startswith("  seen "):
            mutants[-1].seen = words[1].strip()
        elif line.startswith("  times "):
            mutants[-1].times = int(words[1])
        elif line.startswith("  green "):
            mutants[-1].kind, mutants[-1].reason = [part.strip() for part in words[1].split(":", 1)]
        elif line and not line.startswith("----"):
            wrong.append("%s:%d: not understood: %s" % (os.path.basename(path), at, line))
    return mutants, wrong


def where_functions_begin(header):
    """(place, name) of each: a line that begins at the margin, and ends before a brace or a whole body."""
    functions, at, name = [(0, "no function")], 0, None
    for line in header.splitlines(keepends=True):
        plain = re.sub(r"__attribute__\(\(.*\)\) ", "", line)
        if re.match(r"(static|extern|GPUSYNC_)", plain):
            words = re.findall(r"(\w+)\(", plain)
            name = (at, words[0]) if words else None
            if name and re.search(r"\) \{.*\}$", plain):
                functions.append(name)
        elif line.startswith("{") and name:
            functions.append(name)
            name = None
        at += len(line)
    return functions


def check(mutants, header):
    """What cannot be planted, and all that is to be exchanged in the header: (from, to, instead, mutant)."""
    wrong, spots, numbers, around = [], [], set(), []
    functions = where_functions_begin(header)
    for mutant in mutants:
        name = "%d (%s)" % (mutant.number, mutant.function)
        text, own = mutant.edits()
        if mutant.number in numbers:
            wrong.append("%s: the number is there twice" % name)
        numbers.add(mutant.number)
        if not own:
            wrong.append("%s: nothing is exchanged" % name)
        if mutant.kind and mutant.kind not in KINDS:
            wrong.append("%s: green for what reason? %s" % (name, mutant.kind))
        count = header.count(text)
        if count != mutant.times:
            wrong.append("%s: its text is in gpusync.h %d times, not %d" % (name, count, mutant.times))
            continue
        at = header.find(text)
        while at >= 0:
            spots += [(at + begin, at + end, new, mutant) for begin, end, new in own]
            where = functions[bisect.bisect_right(functions, (at, "~")) - 1][1]
            if where != mutant.function:
                wrong.append("%s: it is in %s" % (name, where))
            at = header.find(text, at + 1)
    spots.sort(key=lambda spot: (spot[0], -spot[1]))
    for spot in spots:
        around = [one for one in around if one[1] > spot[0]]
        for one in around:
            if one[1] < spot[1]:
                wrong.append("%d and %d change half of the other's text" % (one[3].number, spot[3].number))
            if one[:3] == spot[:3]:
                wrong.append("%d and %d are the same" % (one[3].number, spot[3].number))
        around.append(spot)
    return wrong, spots


def plant(header, spots):
    """The inner first: what stands around them may be exchanged, too."""
    spots = sorted(spots, key=lambda spot: spot[1] - spot[0])
    while spots:
        begin, end, new, mutant = spots.pop(0)
        planted = mutant.planted(header[begin:end], new)
        header = header[:begin] + planted + header[end:]
        more = len(planted) - (end - begin)
        spots = [(spot[0] + more * (spot[0] >= end), spot[1] + more * (spot[1] >= end)) + spot[2:] for spot in spots]
    return header


def write_seen(path, seen):
    out, number = [], ""
    for line in open(path, encoding="utf-8").read().splitlines():
        head = HEAD.match(line)
        if head:
            number = head.group(1)
        if out and line.startswith("  seen ") and out[-1] == "  seen " + seen.get(number, ""):
            continue # the one before
        out.append(line)
        if head and number in seen:
            out.append("  seen " + seen[number])
    open(path, "w", encoding="utf-8").write("\n".join(out) + "\n")


def main():
    header = open(sys.argv[1], encoding="utf-8").read()
    mutants, wrong = [], []
    if sys.argv[2] == "--seen":
        seen = dict(line.rstrip("\n").split(" ", 1) for line in open(sys.argv[3], encoding="utf-8"))
        for path in LISTS:
            write_seen(path, seen)
        return
    for path in LISTS:
        in_this, not_understood = read_list(path)
        mutants += in_this
        wrong += not_understood
    more, spots = check(mutants, header)
    wrong += more
    if wrong:
        sys.exit("\n".join(wrong))
    if sys.argv[2] == "--list":
        for m in mutants:
            print("\t".join((str(m.number), m.kind or "-", m.reason or "-", m.seen or "-", m.function, m.words)))
    elif sys.argv[2] != "--check":
        header = plant(header, spots).replace(HOOK_AFTER, HOOK_AFTER + HOOK, 1)
        open(sys.argv[2], "w", encoding="utf-8").write(header)


main()
