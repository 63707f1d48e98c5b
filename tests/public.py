#!/usr/bin/env python3
"""public.py - what each public function, and each public struct, of gpusync.h needs besides its code

    python3 -B tests/public.py [ROOT]           says what one lacks, or nothing; ROOT: the repository
    python3 -B tests/public.py --list [ROOT]    their names: released.txt, once a version is released

    documentation   a comment /** */ on its declaration, with Returns (unless it is void), Threads, Blocks and Owns
    test            a call in a tests/test_*.c
    fuzzers         a place in the list that tests/fuzz/calls.sh makes, and a call in either fuzzer. Those of common.h do
                    not count: their arguments make no sense
    stub            a body where GPUSYNC_OBJC is 0, and a call in tests/compile/stubs.c
    struct          its name in GPUSYNC_STRUCTS, for gpusync_struct_sizes; and none there is of another
    change          of one that tests/released.txt does not have: Since in its documentation, its name in "Changes"

Linux only. CC: the compiler (gcc).
"""

import os
import re
import subprocess
import sys
from glob import glob

from shape import LITERAL, OPENING, behind, tokens_of

# Inline in every program, and all that they do is to put their arguments into a gpusync_point.
MAKE_A_POINT = ("gpusync_at_ticket", "gpusync_at_value")
# They take no object: all that the fuzzers can do with them is in common.h.
TAKE_NO_OBJECT = ("gpusync_result_string", "gpusync_failure_string", "gpusync_failure_is_transient",
                  "gpusync_now_ns", "gpusync_version", "gpusync_struct_sizes")


def read(*path):
    with open(os.path.join(*path), encoding="utf-8") as file:
        return file.read()


def functions(header, *options):
    """The names that a program sees declared with these options, and those of them that have a body."""
    compiler = os.environ.get("CC", "gcc")
    code = subprocess.run([compiler, "-std=c11", "-E", "-P", "-D_GNU_SOURCE", *options, "-x", "c", header], check=True,
                          capture_output=True, encoding="utf-8").stdout
    tokens = tokens_of(code)
    declared, defined = set(), set()
    at = 0
    while at < len(tokens):
        end = behind(tokens, at) if tokens[at].text in OPENING else at + 1
        if re.fullmatch(r"gpusync_[a-z0-9]\w*", tokens[at].text) and tokens[at + 1].text == "(":
            end = at
            while tokens[end].text not in (";", "{", ")"):
                end = behind(tokens, end) if tokens[end].text in OPENING else end + 1
            declared.add(tokens[at].text)
            if tokens[end].text == "{":
                defined.add(tokens[at].text)
        at = end
    return declared, defined


def called_in(*paths):
    code = "".join(LITERAL.sub("", read(path)) for path in paths)
    return set(re.findall(r"\b(gpusync_\w+)\(", code))


def documentation(public, name):
    """What stands in front of its name, and the comment right above that."""
    found = re.search(rf"^(?:GPUSYNC_API|static inline)\b[^;{{(]*\b(?={name}\()", public, re.M)
    if not found:
        return "", ""
    above = public[:found.start()]
    comment = above[above.rfind("/*"):] if above.endswith("*/\n") else ""
    return found[0], comment if comment.startswith("/**") else ""


def lacks(root):
    header = os.path.join(root, "gpusync.h")
    tests = os.path.join(root, "tests")
    fuzz = os.path.join(tests, "fuzz")
    text = read(header)
    public = text[:text.index("#endif /* GPUSYNC_H */")]
    changes = text[text.index("\n   Changes\n"):]
    names, _ = functions(header, "-DGPUSYNC_OBJC=1")
    _, with_body = functions(header, "-DGPUSYNC_OBJC=0", "-DGPUSYNC_IMPLEMENTATION")
    released = set(re.findall(r"^gpusync_\w+$", read(tests, "released.txt"), re.M))
    tested = called_in(*glob(os.path.join(tests, "test_*.c")))
    in_stubs_c = called_in(os.path.join(tests, "compile", "stubs.c"))
    listed = subprocess.run([os.path.join(fuzz, "calls.sh"), header], check=True, capture_output=True,
                            encoding="utf-8").stdout
    fuzzed = {
        "calls.h, calls4.h or programs.h": called_in(*(os.path.join(fuzz, name)
                                                       for name in ("calls.h", "calls4.h", "programs.h"))),
        "threads.c": called_in(os.path.join(fuzz, "threads.c")),
    }

    structs = set(re.findall(r"^(?:typedef )?struct (gpusync_[a-z0-9]\w*) \{", public, re.M))
    in_list = re.search(r"#define GPUSYNC_STRUCTS\(X\)(.*?)\n/\*", public, re.S)
    in_list = set(re.findall(r"X\((\w+)\)", in_list[1] if in_list else ""))
    for name in sorted(structs ^ in_list):
        yield f"{name}: " + ("GPUSYNC_STRUCTS does not name it" if name in structs else "is no public struct")

    for name in sorted(names):
        begins, comment = documentation(public, name)
        is_void = begins.split()[-1:] == ["void"]
        new = name not in released
        if not begins:
            yield f"{name}: its declaration does not begin with GPUSYNC_API"
        elif not comment:
            yield f"{name}: no comment /** */ stands on its declaration"
        elif name not in MAKE_A_POINT:
            for line in ["Returns"] * (not is_void) + ["Threads", "Blocks", "Owns"]:
                if not re.search(rf"(?:^ *|   ){line} ", comment, re.M):
                    yield f"{name}: its documentation does not say {line}"
        if name not in tested:
            yield f"{name}: no tests/test_*.c calls it"
        if f'"{name}"' not in listed and name not in MAKE_A_POINT:
            yield f"{name}: tests/fuzz/calls.sh does not list it"
        for where, calls in fuzzed.items():
            if name not in calls and name not in TAKE_NO_OBJECT:
                yield f"{name}: the fuzzer of tests/fuzz/{where} does not call it"
        if name not in with_body:
            yield f"{name}: no body where GPUSYNC_OBJC is 0, see >>stubs"
        if name not in in_stubs_c:
            yield f"{name}: tests/compile/stubs.c does not call it"
        if new and not re.search(r"Since \d", comment):
            yield f"{name}: it is new, and its documentation does not say Since"
        if new and not re.search(rf"\b{name}\b", changes):
            yield f"{name}: it is new, and Changes does not name it"


def main(arguments):
    listing = arguments[:1] == ["--list"]
    root = (arguments[listing:] + ["."])[0]
    if listing:
        print("\n".join(sorted(functions(os.path.join(root, "gpusync.h"), "-DGPUSYNC_OBJC=1")[0])))
    else:
        for line in lacks(root):
            print(line)


if __name__ == "__main__":
    main(sys.argv[1:])
