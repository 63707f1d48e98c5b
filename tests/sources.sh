#!/usr/bin/env bash
# sources.sh - what is said of Metal has a source that anybody can open, or is called assumed
#
# Looks through all text files that git has, and names
#   - words that cite code which Apple has not published: the list `words` below
#   - names of what is private in Apple's frameworks. sources.txt has their hashes, so that they stand nowhere
#   - bullets of examples/metal-behaves.md, and of README.md, "Status", that have neither a source nor the word
#     "assumed", and those whose assumption names no row of beliefs/probes.h
# Prints nothing when there is none. `.ci/run tree` calls this. `tests/sources.sh --hash NAME...` prints lines for sources.txt.

set -euo pipefail
[ "$(uname -s)" = Linux ] || { echo "$0: Linux only" >&2; exit 1; }
cd "$(dirname "$0")/.."
files=$(git ls-files --cached --others --exclude-standard 2>/dev/null || true)
# In a tarball
[ -n "$files" ] || files=$(find . -path "./build*" -prune -o -path ./.git -prune -o -type f -print | sed 's,^\./,,')
FILES=$files exec python3 -B - "$@" <<'END'
import hashlib, os, re, sys

def hash_of(name):
    return hashlib.sha256(name.encode()).hexdigest()

if sys.argv[1:2] == ["--hash"]:
    for name in sys.argv[2:]:
        print(hash_of(name.rstrip("*")) + (" %d" % (len(name) - 1) if name.endswith("*") else ""))
    sys.exit()

# Regular expressions; a blank is any space, with what begins a line of a comment. None matches itself as it stands here.
words = [
    r"decompi[l]", r"disassem[b]l", r"reverse[- ]engin[e]er", r"class-dum[p]", r"\blisting[s]? o[f]\b",
    r"apple'?s? cod[e]\b", r"(read|seen|found) in (metal|apple)'?s? (cod[e]|binar[y]|framework)",
    r"\bios 26[.]1\b", r"\bprivate (clas[s]|metho[d]|selecto[r])(es|s)? of (apple|metal)",
]
words = [re.compile(word.replace(" ", r"[\s*#/]+"), re.I) for word in words]

whole, begins, shown = set(), {}, set()
for line in open("tests/sources.txt", encoding="utf-8"):
    parts = line.split()
    if not parts or parts[0] == "#":
        continue
    if parts[0] == "shown":
        if len(parts) != 3 or not parts[2].startswith("https://"):
            print("tests/sources.txt: no link: " + line.strip())
        shown.add(parts[1])
    elif len(parts) == 2:
        begins.setdefault(int(parts[1]), set()).add(parts[0])
    else:
        whole.add(parts[0])

known = {}
def is_private(name):
    if name not in known:
        known[name] = name not in shown and (
            hash_of(name) in whole or any(hash_of(name[:n]) in hashes for n, hashes in begins.items() if n <= len(name)))
    return known[name]

name = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
label = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z0-9_]+)+") # as of a dispatch queue

for path in os.environ["FILES"].split("\n"):
    if path == "tests/sources.txt" or not os.path.isfile(path) or os.path.islink(path):
        continue
    data = open(path, "rb").read()
    if b"\0" in data[:8000]:
        continue
    text = data.decode("utf-8", "replace")
    for word in words:
        for match in word.finditer(text):
            print("%s:%d: %s" % (path, text.count("\n", 0, match.start()) + 1, " ".join(match.group().split())))
    for token in sorted(set(name.findall(text)) | set(label.findall(text))):
        if is_private(token):
            at = re.search(r"(?<![A-Za-z0-9_])" + re.escape(token), text).start()
            print("%s:%d: a private name: %s" % (path, text.count("\n", 0, at) + 1, token))

# -- the bullets

rows = set(re.findall(r'^    ROW\("([^"]*)"', open("tests/beliefs/probes.h", encoding="utf-8").read(), re.M))
source = re.compile(r"\w\.h\b|ocumentation of|[\w.-]+/[\w.-]+#\d+|\w/\w[\w./-]*(\.\w+|, the same file)|runtime\.cpp|std::hint")

def bullets_of(path, begin, end):
    text = open(path, encoding="utf-8").read()
    place = re.search(begin + r"(.*?)" + end, text, re.S | re.M)
    if not place:
        print(path + ": where is " + begin)
        return []
    return re.findall(r"^\* (.*(?:\n  .*)*)", place.group(1), re.M)

for path, begin, end in (("README.md", "^Open, and what happens", "^`make bench`"),
                         ("examples/metal-behaves.md", r"\A# How Metal behaves", r"\Z")):
    found = bullets_of(path, begin, end)
    if not found:
        print(path + ": no bullets")
    for bullet in found:
        first = bullet.split("\n")[0][:80]
        assumed = re.search(r"\bassumed\b", bullet, re.I)
        if not assumed and not source.search(bullet):
            print("%s: neither a source nor \"assumed\": %s" % (path, first))
        if assumed:
            named = re.findall(r"assumed\*\*\s+\(([^)]*)\)|\((`[^`]+`)[^)]*\)", bullet, re.I)
            named = [row for pair in named for part in pair for row in re.findall(r"`([^`]+)`", " ".join(part.split()))]
            if not any(row in rows for row in named):
                print("%s: an assumption without a row: %s" % (path, first))
            for row in named:
                if row not in rows and re.search(r"assumed\*\*\s+\(`" + re.escape(row), bullet, re.I):
                    print("%s: no such row: %s" % (path, row))
END
