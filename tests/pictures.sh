#!/usr/bin/env bash
# pictures.sh - are the pictures of examples/pictures what their JSON gives, byte by byte, and can they be read?
#
#   tests/pictures.sh DIRECTORY      DIRECTORY: where to draw
#
# `make test-pictures` calls this. The charts of tests/bench/chart.sh are drawn too, which needs gnuplot and jq: without
# them that is left out, and said to be.
#
# Ends with exactly one line "N passed, N failed": the pictures, the charts, and what a reader needs of each picture.

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

rm -rf "$out/charts"
if ! command -v gnuplot >/dev/null || ! command -v jq >/dev/null; then
    echo "skipped: the charts of tests/bench/chart.sh, for want of gnuplot or jq"
elif tests/bench/chart.sh $pictures/waiting.json "$out/charts" &&
    [ -s "$out/charts/waiting-150.svg" ] && [ -s "$out/charts/waiting-1000.svg" ]; then
    passed=$((passed + 1))
else
    failed=$((failed + 1))
    echo "FAILED: tests/bench/chart.sh does not draw $pictures/waiting.json"
fi

# What a reader needs. The widths of texts are estimates, on the narrow side.
read -r good bad < <(python3 -B - $pictures <<'CHECKS'
import collections
import json
import re
import sys
import xml.etree.ElementTree as ET

directory = sys.argv[1]
NAMES = ("trace", "pipeline", "ticket", "waiting-150", "waiting-1000")
AXES = {"trace": ["axis-time"], "pipeline": ["axis-time"], "ticket": [], "waiting-150": ["axis-x", "axis-y"],
        "waiting-1000": ["axis-x", "axis-y"]}
UNITS = ("milliseconds (ms)", "microseconds (us)")
KEYS = {"us": "microseconds", "ms": "milliseconds", "condvar": "condition variable", "NOT_READY": "without GPUSYNC_",
        "32/224": "32 pauses and 224 yields", "waitUntil...": "32 pauses, 224 yields, waitUntilCompleted",
        "parked": "a spin of zeros:", "blocking": "options.blocking:", "sentinel": "sentinel: ", "pinned": "pinned: ",
        "poll": "gpusync_poll returns", "softmetal": "software"}
MOVES = """open-to-discarded open-to-tracked open-to-committed open-to-held open-to-failed tracked-to-committed
    tracked-to-failed held-to-committed held-to-failed committed-to-running committed-to-failed running-to-done
    running-to-failed""".split()  # of >>model, gpusync_track, gpusync_poll, gpusync_queue_destroy and >>destroy
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
        elif tag(element) == "path" and "s-line" in element.get("class"):
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
check("ticket", "moves without an arrow, or without the maker", [
    n for n in groups if "-to-" in n and ("polygon" not in map(tag, groups[n]) or not texts_of(groups[n]))])
check("ticket", "states of its JSON that are not drawn",
      different(["state-" + s["name"] for s in data["states"]], [n for n in groups if n.startswith("state-")]))
with open("gpusync.h", encoding="utf-8") as file:
    header = file.read()
calls = sorted(set(re.findall(r"\bgpusync_\w+", " ".join(texts_of(root)))))
check("ticket", "calls that gpusync.h does not declare", [c for c in calls if not re.search(rf"\b{c}\(", header)])

for kernel in (150, 1000):
    root, groups = pictures[f"waiting-{kernel}"]
    names = [r["contestant"] for r in read("waiting")["rows"] if r["kernel_us"] == kernel and r["commits"] == 1]
    key = texts_of(groups.get("legend", ET.Element("{}g")))
    check(f"waiting-{kernel}", "a contestant that is not there once, and once in the key",
          [n for n in names if texts_of(root).count(n) != 2 or key.count(n) != 1])
    points = [e for e in root.iter() if tag(e) in ("circle", "polygon")]
    check(f"waiting-{kernel}", "points", different([len(names) + 2], [len(points)]))

print(passed, failed)
CHECKS
)
[ -n "${bad:-}" ] || echo "FAILED: the checks of the pictures did not come to an end"
passed=$((passed + ${good:-0})) failed=$((failed + ${bad:-1}))
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
