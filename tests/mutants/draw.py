#!/usr/bin/env python3
"""draw.py - lines of the implementation, drawn by chance: drawn.txt has a fault in each

    draw.py GPUSYNC_H SEED COUNT        drawn.txt was made with the seeds 29, 2611, 2711 and 2811, each with the count 200

Each chapter from >>impl to the one before >>stubs gets lines in proportion to its lines of code (largest remainder),
and they are drawn without replacement. No line of code, for this: what stands in no function and has no initialiser,
a head of a function, a declaration without initialiser, a typedef, braces alone, `else` alone, a cast to void, an
assertion, a preprocessor line, a branch that Linux does not compile.

Prints chapter, function, line number and text of each, with tabs in between, in the order of the header.
"""

import random
import re
import sys

BANNER = re.compile(r"^/\* -+ >>([a-z0-9-]+) --", re.M)
LITERAL = re.compile(r"""/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""", re.S)
DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.M)
ELSEWHERE = re.compile(r"^#if(?:def __APPLE__|def __cplusplus)$.*?^#(?:else|endif)\b", re.M | re.S) # none has an #if inside
ASSERTION = re.compile(r"^ *GPUSYNC_ASSERT\(.*?;$", re.M | re.S)
DECLARATION = re.compile(r" *(?!return|goto|else|break)(?:\w+ )+\**\w+(?:\[[^]]*\])?(?:, \**\w+(?:\[[^]]*\])?)*;$")
NOTHING = re.compile(r"[\s{};]*(?:else|do|typedef\b.*|\(void\)\w+;)?[\s{};]*$")


def blanked(found):
    return "\n" * found[0].count("\n")


def lines_of_code(text):
    """(line number, function) of each; the function is "-" at an initialiser outside of all."""
    code = LITERAL.sub(lambda found: blanked(found) if found[0][0] == "/" else '""', text)
    for unwanted in (ELSEWHERE, DIRECTIVE, ASSERTION):
        code = unwanted.sub(blanked, code)
    depth, head, function = 0, "", None # head: what stands at the margin since the last ; or }
    for number, line in enumerate(code.split("\n"), 1):
        outside = depth == 0
        depth += line.count("{") - line.count("}")
        if outside:
            head += line
            if "{" in line:
                named = re.search(r"(\w+)\((?!\()[^{=]*\) *\{", re.sub(r"__attribute__\(\(.*?\)\)", "", head))
                function = named[1] if named else "-" if "=" in head else None
            elif ";" in line:
                function = "-" if "=" in head else None
        whole = not outside or line.rstrip().endswith("}") or function == "-" # no head alone
        if function and whole and not NOTHING.match(line) and not DECLARATION.match(line):
            yield number, function
        if depth == 0 and re.search(r"[;}]\s*$", line):
            head, function = "", None


def main():
    text = open(sys.argv[1], encoding="utf-8").read()
    chance, count = random.Random(int(sys.argv[2])), int(sys.argv[3])
    lines, begins = text.split("\n"), [(text.count("\n", 0, found.start()) + 1, found[1]) for found in BANNER.finditer(text)]
    names = [name for _, name in begins]
    chapters = {name: [] for name in names[names.index("impl"):names.index("stubs")]}
    for number, function in lines_of_code(text):
        chapter = [name for begin, name in begins if begin <= number][-1:]
        if chapter and chapter[0] in chapters:
            chapters[chapter[0]].append((number, function))
    total = sum(map(len, chapters.values()))
    shares = {name: count * len(code) / total for name, code in chapters.items()}
    quotas = {name: int(share) for name, share in shares.items()}
    for name in sorted(shares, key=lambda name: quotas[name] - shares[name])[:count - sum(quotas.values())]:
        quotas[name] += 1
    for name, code in chapters.items():
        for number, function in sorted(chance.sample(code, quotas[name])):
            print(name, function, number, lines[number - 1].strip(), sep="\t")


main()
