#!/usr/bin/env python3
"""limits.py - the totals of gpusync, against their limits: what a reader of the header has to hold, and how long files are

    tests/limits.py [--sections | --functions | --reach FUNCTION]
        the totals; or tokens and functions by chapter; or the functions; or those that a function reaches

Tokens are names, numbers, texts, operators and brackets, from >>impl to the end of >>stubs, without comments and
preprocessor lines. Atomic operations are uses of the builtins and of macros made of them; kinds of locks are fields and
variables that are locks. A total may be 2 % above its limit. A limit that makes the code worse is moved, in a commit
that says so. Ends with one line "N passed, N failed".
"""
import re
import subprocess
import sys
import tempfile

LITERAL = re.compile(r"""/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""", re.S)
TOKEN = re.compile(r"""[A-Za-z_]\w*|\.?\d(?:[eEpP][-+]|[\w.])*|\.\.\.|->|\+\+|--|<<=|>>=|<<|>>|&&|\|\||[-+*/%&|^<>=!]=|""|''|[^\s\w]""")
LOCKS = ("gpusync__mutex", "pthread_mutex_t")


def tokens_of(text):
    text = LITERAL.sub(lambda it: it[0][0] * 2 if it[0][0] in "\"'" else " " + "\n" * it[0].count("\n"), text)
    text = re.sub(r"^#ifdef __cplusplus$.*?(?=^#(?:else|endif)\b)|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*",
                  lambda it: "\n" * it[0].count("\n"), text, flags=re.M | re.S)
    return TOKEN.findall(text)


def bodies_of(tokens):
    """Name and tokens of each definition: brackets outside of all others that have a body behind them."""
    depth = start = name = 0
    for at, token in enumerate(tokens):
        if token == "(" and depth == 0 and tokens[at - 1].isidentifier():
            name = at - 1
        if token == "{" and depth == 0:
            body = tokens[at - 1] == ")" and "=" not in tokens[start:at]
        depth += (token in "([{") - (token in ")]}")
        if depth == 0 and token in (";", "}"):
            if token == "}" and body:
                yield tokens[name], tokens[start:at + 1]
            start = at + 1


def functions_of(tokens):
    return ((name, len(body)) for name, body in bodies_of(tokens))


def reach_of(tokens, function):
    """What a reader of the function may have to read: each name of a function of the file in a body counts as a call."""
    bodies = dict(bodies_of(tokens))
    reached, left = set(), [function]
    while left:
        name = left.pop()
        if name not in reached:
            reached.add(name)
            left += [token for token in bodies[name] if token in bodies]
    return {name: len(bodies[name]) for name in reached}


def structs_of(tokens):
    """How many structs and unions with a body, and how many names are declared in them."""
    structs = fields = 0
    open_ones = [False]
    for at, token in enumerate(tokens):
        if open_ones[-1] and token in ";,}":
            fields += tokens[at - 1] not in (";", "{", "}")
        if token in "([{":
            open_ones.append(token == "{" and not {"struct", "union"}.isdisjoint(tokens[max(at - 2, 0):at]))
            structs += open_ones[-1]
        elif token in ")]}":
            open_ones.pop()
    return structs, fields


def lines_of(*patterns):
    files = subprocess.run(["git", "ls-files", *patterns], capture_output=True, text=True, check=True).stdout.split("\n")
    return sum(open(file, errors="replace").read().count("\n") for file in files if file)


def code_bytes(text):
    with tempfile.TemporaryDirectory() as folder:
        source = f"{folder}/gpusync.c"
        with open(source, "w") as file:
            file.write("#define GPUSYNC_IMPLEMENTATION\n#define GPUSYNC_OBJC 1\n" + text)
        subprocess.run(["gcc", "-std=gnu11", "-O2", "-c", source, "-o", f"{source}.o"], check=True)
        sections = subprocess.run(["size", "-A", f"{source}.o"], capture_output=True, text=True).stdout
        return sum(int(size) for size in re.findall(r"^\.text\S* +(\d+)", sections, re.M))


def totals(text, tokens):
    """What is measured, the figure, the limit."""
    core = tokens_of(text[text.index(">>impl --"):text.index(">>callbacks --")])
    structs, fields = structs_of(tokens)
    atomics = set(re.findall(r"^#define (\w+)\([^)]*\) +__atomic_", text, re.M))
    yield "tokens of the implementation", len(tokens), 42950
    yield "tokens of the core", len(core), 23900
    yield "functions", sum(1 for _ in functions_of(tokens)), 391
    yield "functions that gpusync_commit reaches", len(reach_of(tokens, "gpusync_commit")), 75
    yield "functions that gpusync_wait reaches", len(reach_of(tokens, "gpusync_wait")), 62
    yield "structs", structs, 39
    yield "fields", fields, 316
    yield "atomic operations", sum(t.startswith("__atomic_") or t in atomics for t in tokens), 104
    yield "kinds of locks", sum(t in LOCKS and tokens[at + 1].isidentifier() for at, t in enumerate(tokens)), 4
    yield "lines of gpusync.h", lines_of("gpusync.h"), 7940
    yield "lines of its front", text[:text.index("#endif /* GPUSYNC_H */")].count("\n"), 1050
    yield "lines of its core", text[text.index(">>core --"):text.index(">>more --")].count("\n"), 420
    yield "bytes of code, gcc -O2", code_bytes(text), 68400
    yield "lines of tests/", lines_of("tests"), 57800
    yield "lines of examples/", lines_of("examples"), 5000
    yield "lines of Makefile", lines_of("Makefile"), 250
    yield "lines of .ci/run", lines_of(".ci/run"), 120
    yield "lines of tests/README.md", lines_of("tests/README.md"), 250


def main(what, function=""):
    text = open("gpusync.h").read()
    tokens = tokens_of(text[text.index(">>impl --"):text.index(">>history --")])
    if what == "--functions":
        for name, size in sorted(functions_of(tokens), key=lambda each: -each[1]):
            print(f"{size:6} {name}")
        return 0
    if what == "--reach":
        reached = reach_of(tokens, function)
        for name, size in sorted(reached.items(), key=lambda each: -each[1]):
            print(f"{size:6} {name}")
        print(f"{sum(reached.values()):6} {len(reached)} functions")
        return 0
    if what == "--sections":
        for name, part in re.findall(r">>([a-z]+) --(.*?)(?=/\* -+ >>[a-z]+ --|\Z)", text[text.index(">>impl --"):], re.S):
            part = "/*" + part
            print(f"{len(tokens_of(part)):6} {sum(1 for _ in functions_of(tokens_of(part))):4} {name}")
        return 0
    passed = failed = 0
    for name, figure, most in totals(text, tokens):
        good = 0 < figure <= most * 1.02
        passed, failed = passed + good, failed + (not good)
        print(f"{name:<40} {figure:>7} {most:>7}  {'ok' if good else 'FAILED: above the limit'}")
    print(f"{passed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:] or [""]))
