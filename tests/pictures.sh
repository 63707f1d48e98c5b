#!/usr/bin/env bash
# pictures.sh - are the pictures of examples/pictures what their JSON gives, byte by byte, and can they be read?
#
#   tests/pictures.sh DIRECTORY      DIRECTORY: where to draw
#
# `make test-pictures` calls this. Ends with exactly one line "N passed, N failed": the pictures, and what a reader needs
# of each.

set -u
[ "$(uname -s)" = Linux ] || { echo "$0: Linux only" >&2; exit 1; }
cd "$(dirname "$0")/.." || exit 1
out=$1 pictures=examples/pictures
passed=0 failed=0
mkdir -p "$out"
if ! python3 -B $pictures/pictures.py --draw "$out"; then
    failed=1
    echo "FAILED: pictures.py does not draw all pictures"
fi
for picture in "$pictures"/*.svg; do
    name=$(basename "$picture")
    if cmp "$picture" "$out/$name"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED: $name is not what its JSON gives: call make pictures"
    fi
done

# What a reader needs. The widths of texts are estimates, on the narrow side.
read -r good bad < <(python3 -B - $pictures <<'CHECKS'
import collections
import json
import math
import re
import sys
import xml.etree.ElementTree as ET

directory = sys.argv[1]
NAMES = ("trace", "pipeline", "ticket", "waiting")
AXES = {"trace": ["axis-time"], "pipeline": ["axis-time"], "ticket": [], "waiting": ["axis-x", "axis-latency", "axis-cpu"]}
UNITS = ("milliseconds (ms)", "microseconds (us)", "% of the length of the work")
KEYS = {"us": "microseconds", "ms": "milliseconds", "softmetal": "software"}
SMALLEST = {"ticket": 13, "waiting": 13}  # of letters, in pixels of a page that is as wide as the picture
PAGE = 830  # what a page of GitHub has for a picture
MOVES = """open-to-discarded open-to-tracked open-to-committed open-to-held open-to-failed tracked-to-committed
    tracked-to-failed held-to-committed held-to-failed committed-to-done
    committed-to-failed""".split()  # of >>model, gpusync_track, gpusync_poll, gpusync_queue_destroy and >>destroy
passed = failed = 0


def check(name, what, wrong):
    global passed, failed
    if not wrong:
        passed += 1
        return
    failed += 1
    print(f"FAILED: {name}.svg: {what}: {'; '.join(map(str, list(wrong)[:5]))}", file=sys.stderr)


def tag(element):
    return element.tag.split("}")[1]


def rules(style):
    """The colour of each class, on a light page and on a dark one."""
    light, _, dark = style.partition("@media (prefers-color-scheme: dark) {")
    return [dict(re.findall(r"\.([fs]-[a-z-]+)\{(?:fill|stroke):(#[0-9a-f]{6})\}", part)) for part in (light, dark)]


def brightness(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    parts = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def contrast(a, b):
    if not a or not b:
        return 0
    a, b = sorted((brightness(a), brightness(b)))
    return (b + 0.05) / (a + 0.05)


def fill(element):
    return next((name for name in element.get("class", "").split() if name.startswith("f-")), None)


def box_of(text):
    x, y, size = float(text.get("x")), float(text.get("y")), float(text.get("font-size"))
    wide = 0.5 * size * len(text.text)
    left = {"middle": wide / 2, "end": wide}.get(text.get("text-anchor"), 0)
    if text.get("transform"):  # upwards
        return (x - 0.7 * size, y - left, x + 0.1 * size, y - left + wide)
    return (x - left, y - 0.7 * size, x - left + wide, y + 0.1 * size)


def crosses(box, x1, y1, x2, y2):
    n = 200
    spots = ((x1 + (x2 - x1) * i / n, y1 + (y2 - y1) * i / n) for i in range(n + 1))
    return any(box[0] < x < box[2] and box[1] < y < box[3] for x, y in spots)


def by_id(root):
    return {element.get("id"): element for element in root.iter() if element.get("id")}


def texts_of(element):
    return ["".join(text.itertext()) for text in element.iter() if tag(text) == "text"]


def look(name):
    root = ET.parse(f"{directory}/{name}.svg").getroot()
    groups, all_text = by_id(root), " | ".join(texts_of(root))
    check(name, "no legend", [] if "legend" in groups and texts_of(groups["legend"]) else ["of any kind"])
    check(name, "axes, or their units, are missing", [
        axis for axis in AXES[name] if axis not in groups or not any(
            unit in text for unit in UNITS for text in texts_of(groups[axis]))]
        + [axis for axis in groups if axis.startswith("axis") and axis not in AXES[name]])
    check(name, "no key to", [short for short, key in KEYS.items()
                              if re.search(rf"(?<![\w/]){re.escape(short)}(?!\w)", all_text) and key not in all_text])

    light, dark = rules(next(element.text for element in root if tag(element) == "style"))
    used = {name for element in root.iter() for name in element.get("class", "").split()}
    check(name, "colours that are not there on a light page and on a dark one", [
        name for name in used if name not in light or name not in dark] + [
        colour for element in root.iter() for colour in (element.get("fill"), element.get("stroke"))
        if colour not in (None, "none")] + ["none differ"] * (light == dark))

    texts, rects, lines, faint, size = [], [], [], [], (float(root.get("width")), float(root.get("height")))
    for element in root.iter():
        if tag(element) == "rect":
            x, y, width, height = (float(element.get(what)) for what in ("x", "y", "width", "height"))
            rects.append((x, y, x + width, y + height, fill(element)))
        elif tag(element) == "path" and "s-grid" not in element.get("class"):
            places = [tuple(map(float, place.split())) for place in element.get("d")[1:].split("L")]
            lines += [(*a, *b) for a, b in zip(places, places[1:])]
        elif tag(element) == "text":
            box = box_of(element)
            texts.append((box, element.text))
            middle = ((box[0] + box[2]) / 2, (box[1] + box[3]) / 2)
            ground = [r[4] for r in rects if r[0] <= middle[0] <= r[2] and r[1] <= middle[1] <= r[3]]
            faint += [f"'{element.text}' {scheme}" for scheme, colours in (("light", light), ("dark", dark))
                      if not ground or contrast(colours.get(fill(element)), colours.get(ground[-1])) < 4.5]
    check(name, "contrast below 4.5", faint)
    check(name, "text too small for a page", [
        element.text for element in root.iter() if tag(element) == "text"
        and float(element.get("font-size")) * min(1, PAGE / size[0]) < SMALLEST.get(name, 9)])
    check(name, "text beyond the edge", [text for box, text in texts
                                         if min(box[:2]) < 4 or box[2] > size[0] - 4 or box[3] > size[1] - 4])
    check(name, "text over text", [
        f"'{a}' and '{b}'" for i, (one, a) in enumerate(texts) for other, b in texts[:i]
        if one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]])
    check(name, "a line through text", [text for box, text in texts if any(crosses(box, *line) for line in lines)])
    check(name, "the edge of a box through text", [
        text for box, text in texts for r in rects
        if crosses(box, r[0], r[1], r[0], r[3]) or crosses(box, r[2], r[1], r[2], r[3])
        or crosses(box, r[0], r[1], r[2], r[1]) or crosses(box, r[0], r[3], r[2], r[3])])
    return root, groups


def read(name):
    with open(f"{directory}/{name}.json", encoding="utf-8") as file:
        return json.load(file)


def different(a, b):
    a, b = collections.Counter(a), collections.Counter(b)
    return list((a - b).elements()) + list((b - a).elements())


pictures = {name: look(name) for name in NAMES}

root, groups = pictures["trace"]
events = read("trace")["traceEvents"]
process, thread = ({(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == kind}
                   for kind in ("process_name", "thread_name"))


def named(prefix, wanted):
    """What the events are about, as the ids have it."""
    return [prefix + "-".join(e["name"].split()[-2:]) for e in events if e["ph"] != "M" and wanted(e)]


tickets = named("", lambda e: e["name"].startswith("commit "))
shown = [e.get("id") for e in root.iter() if re.fullmatch(r"(upload|compute|readback)-\d+", e.get("id", ""))]
check("trace", "a ticket that is not there once", different(tickets, shown))
check("trace", "a ticket with another number, or with several", [
    name for name in shown if texts_of(groups[name]) != [name.split("-")[1]]])
expected = named("held-", lambda e: e["ph"] == "X" and process[e["pid"], e["tid"]] == "held")
expected += named("wait-", lambda e: e["ph"] == "B" and thread[e["pid"], e["tid"]] == "main")
check("trace", "held, and waits: not what was recorded",
      different(expected, [e.get("id") for e in root.iter() if re.match("held-|wait-", e.get("id", ""))]))
numbers = [(e.get("y"), e.text) for name in shown + expected for e in groups.get(name, []) if tag(e) == "text"]
check("trace", "a number twice in a row", different(numbers, set(numbers)))

root, groups = pictures["pipeline"]
runs = read("pipeline")["runs"]
found = [text for text in texts_of(root) if re.fullmatch(r"[a-z]+ at a time, .*|upload|compute|readback", text)]
check("pipeline", "runs or stages that are not there once", different(
    [f"{run['span_ms']:.0f} ms" for run in runs] + ["upload", "compute", "readback"] * len(runs),
    [re.sub(r".*time, (\d+ ms).*", r"\1", text) for text in found]))
chunks = [str(i + 1) for run in runs for i in range(len(run["chunks"])) for _ in range(3)]
check("pipeline", "chunks that are not there once in each stage",
      different(chunks, [e.text for e in root.iter() if e.get("font-size") == "10"]))

root, groups = pictures["ticket"]
data = read("ticket")
check("ticket", "moves that gpusync.h documents, or others", different(MOVES, [n for n in groups if "-to-" in n]))
check("ticket", "moves without an arrow, or without one short label", [
    n for n in groups if "-to-" in n and ("polygon" not in map(tag, groups[n]) or len(texts_of(groups[n])) != 1
                                          or len(texts_of(groups[n])[0]) > 40)])
check("ticket", "states of its JSON that are not drawn",
      different(["state-" + s["name"] for s in data["states"]], [n for n in groups if n.startswith("state-")]))
with open("gpusync.h", encoding="utf-8") as file:
    header = file.read()
names = sorted(set(re.findall(r"\b(?:gpusync|GPUSYNC)_\w+", " ".join(texts_of(root)))))
check("ticket", "names that gpusync.h does not have", [n for n in names if not re.search(rf"\b{n}(\(| = )|\bX\({n.replace('GPUSYNC_', '')}, ", header)])

root, groups = pictures["waiting"]
rows = read("waiting")["rows"]
lengths = sorted({row["kernel_us"] for row in rows})
names = list(dict.fromkeys(row["contestant"] for row in rows))
of = {(row["contestant"], row["kernel_us"]): row for row in rows}
check("waiting", "a contestant's length that is not there once",
      different([(n, us) for n in names for us in lengths], [(row["contestant"], row["kernel_us"]) for row in rows]))


def ticks(axis, across):
    """The places of the marks of a logarithmic axis, and the logarithms of what they say."""
    for text in groups[axis]:
        found = tag(text) == "text" and re.fullmatch(r"([\d.]+) (us|ms|%)", text.text)
        if found:
            place = float(text.get("x")) if across else float(text.get("y")) - 4.5
            yield place, math.log(float(found[1]) * (1000 if found[2] == "ms" else 1))


def reader(axis, across):
    """What a place on the axis says."""
    (a, low), *_, (b, high) = sorted(ticks(axis, across))
    return lambda place: math.exp(low + (high - low) * (place - a) / (b - a))


for panel, value in (("latency", lambda row: row["latency_us"]), ("cpu", lambda row: 100 * row["cpu_us"] / row["kernel_us"])):
    x, y = reader("axis-x", True), reader(f"axis-{panel}", False)
    wrong = [e for e in root.iter() if re.match(f"{panel}-(?!names)", e.get("id", ""))][len(names):]
    for n in names:
        path = [e for e in groups.get(f"{panel}-{n}".replace(" ", "-"), []) if tag(e) == "path"]
        places = [tuple(map(float, place.split())) for e in path for place in e.get("d")[1:].split("L")]
        wrong += [n] * (len(places) != len(lengths))
        wrong += [f"{n} at {us} us" for us, place in zip(lengths, places)
                  if abs(x(place[0]) / us - 1) > 0.02 or abs(y(place[1]) / value(of[n, us]) - 1) > 0.02]
    check("waiting", f"the lines of {panel} do not say what was measured", wrong)
    shown = texts_of(groups.get(f"{panel}-names", ET.Element("{}g")))
    check("waiting", f"a line of {panel} without a name of its own", different([len(names)] * 2, [len(shown), len(set(shown))]))
check("waiting", "not told that it is no Apple hardware", [
    words for words in ("softmetal", "on Linux", "not on Apple hardware") if words not in " ".join(texts_of(root))])
SLEEPS = ("gpusync parked", "waitUntilCompleted", "handler + semaphore")


def unlike(one, other, us):
    return [f"{what} at {us} us: {one} {of[one, us][what]}, {other} {of[other, us][what]}" for what in ("latency_us", "cpu_us")
            if not 2 / 3 < of[one, us][what] / of[other, us][what] < 3 / 2]


check("waiting", "what waits.md says of the default is wrong", [
    words for us in lengths for words in unlike("gpusync", "spin for ever" if us <= 150 else "gpusync parked", us)]
    + [f"latency at {us} us" for us in lengths if us <= 150 and not 3 < of["gpusync", us]["latency_us"] < 6])
check("waiting", "what waits.md says of sleeps is wrong", [
    words for us in lengths for n in SLEEPS for words in unlike(n, "gpusync parked", us)]
    + [f"latency at {us} us" for us in lengths if us <= 150 and not 15 < of["gpusync parked", us]["latency_us"] < 30])
check("waiting", "what waits.md says of a spin until the end is wrong", [
    f"{n} at {us} us" for us in lengths for n in names if of[n, us]["latency_us"] < of["spin for ever", us]["latency_us"]])

print(passed, failed)
CHECKS
)
[ -n "${bad:-}" ] || echo "FAILED: the checks of the pictures did not come to an end"
passed=$((passed + ${good:-0})) failed=$((failed + ${bad:-1}))
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
