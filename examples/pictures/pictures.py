#!/usr/bin/env python3
"""Draws pipeline.svg and ticket.svg from pipeline.json and ticket.json, the same bytes each time.

    pictures.py                    draws both, next to this file
    pictures.py --check            says which of them is not what would be drawn now
    pictures.py --record OVERLAP   runs that program (examples/overlap.c) five times, and notes the times of the run with
                                   the median gain in pipeline.json first

waiting-*.svg are drawn by tests/bench/chart.sh. No packages are needed. The background is a part of the picture, so
that it can be read on a dark page, too.
"""

import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TEXT, FAINT, LINE = "#222222", "#666666", "#888888"
RUNS = 5
STAGES = {"upload": ("#30507a", "#c9d6e6"), "compute": ("#b03030", "#efcfcf"), "readback": ("#3a6b35", "#d0e2cd")}


def number(x):
    """At most one digit behind the point, which is enough for pixels."""
    return f"{x:.1f}".removesuffix(".0")


def escape(words):
    return words.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


class Svg:
    def __init__(self, width, height, title):
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
            f'font-family="DejaVu Sans, Verdana, sans-serif">',
            f"<title>{escape(title)}</title>",
            f'<rect x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="6" fill="#ffffff" stroke="#dddddd"/>',
        ]

    def text(self, x, y, words, size=13, fill=TEXT, anchor="start", bold=False):
        weight = ' font-weight="bold"' if bold else ""
        self.parts.append(
            f'<text x="{number(x)}" y="{number(y)}" font-size="{size}" fill="{fill}" '
            f'text-anchor="{anchor}"{weight}>{escape(words)}</text>'
        )

    def rect(self, x, y, width, height, fill, stroke="none", rx=0):
        self.parts.append(
            f'<rect x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}" '
            f'fill="{fill}" stroke="{stroke}" rx="{rx}"/>'
        )

    def line(self, x1, y1, x2, y2, stroke=LINE, width=1):
        self.parts.append(
            f'<path d="M{number(x1)} {number(y1)}L{number(x2)} {number(y2)}" stroke="{stroke}" stroke-width="{width}"/>'
        )

    def arrow(self, x1, y1, x2, y2):
        """With its point at the second place."""
        length = math.sqrt((x2 - x1) ** 2 + (y2 - y1) ** 2)
        dx, dy = (x2 - x1) / length, (y2 - y1) / length
        bx, by = x2 - 9 * dx, y2 - 9 * dy
        self.line(x1, y1, bx, by, LINE, 1.5)
        corners = ((x2, y2), (bx - 4 * dy, by + 4 * dx), (bx + 4 * dy, by - 4 * dx))
        points = " ".join(f"{number(x)},{number(y)}" for x, y in corners)
        self.parts.append(f'<polygon points="{points}" fill="{LINE}"/>')

    def done(self):
        return "\n".join(self.parts + ["</svg>", ""])


def pipeline(data):
    """Two runs above each other, with one axis. What is pale has begun on the device and waits for the stage before."""
    left, right, lane, top = 100, 870, 24, 62
    runs = data["runs"]
    end = max(run["span_ms"] for run in runs)
    svg = Svg(900, top + len(runs) * (3 * lane + 50) + 42, "chunks through three queues, one and three at a time")
    x = lambda ms: left + (right - left) * ms / end
    svg.text(left, 28, f"{len(runs[0]['chunks'])} chunks through three queues", 15)
    machine = data["machine"]
    where = f"softmetal, no GPU. {machine['cpu']}, {machine['cores']} cores, {data['date'][:10]}"
    svg.text(right, 28, where, 10, FAINT, "end")
    y = top
    for run in runs:
        at_a_time = "one at a time" if run["depth"] == 1 else f"{run['depth']} at a time"
        ratio = runs[0]["span_ms"] / run["span_ms"]
        gain = "" if run is runs[0] else f": {ratio:.1f} times as fast"
        svg.text(left, y, f"{at_a_time}, {run['span_ms']:.0f} ms{gain}", 12, TEXT, bold=True)
        y += 8
        for stage, (dark, pale) in STAGES.items():
            svg.text(left - 10, y + lane - 8, stage, 12, dark, "end")
            svg.rect(left, y + lane - 2, right - left, 0.8, "#e4e4e4")
            before = {"compute": "upload", "readback": "compute"}.get(stage)
            for i, chunk in enumerate(run["chunks"], 1):
                start, stop = chunk[stage]
                work = min(stop, max(start, chunk[before][1])) if before else start
                if work > start:
                    svg.rect(x(start), y + 3, x(work) - x(start), lane - 6, pale)
                svg.rect(x(work), y + 3, x(stop) - x(work), lane - 6, dark)
                svg.text((x(work) + x(stop)) / 2, y + lane - 8, str(i), 10, "#ffffff", "middle")
            y += lane
        y += 42
    y -= 30
    svg.line(left, y, right, y)
    for ms in range(0, int(end) + 1, 20):
        svg.line(x(ms), y, x(ms), y + 5)
        svg.text(x(ms), y + 18, f"{ms} ms", 11, FAINT, "middle")
    svg.rect(left, y + 28, 14, 12, STAGES["compute"][1])
    svg.text(left + 20, y + 38, "has begun on the device, and waits for the stage before", 11, FAINT)
    return svg.done()


def ticket(data):
    """States as boxes, moves as arrows from edge to edge, each with who makes it."""
    width, height = 132, 56
    svg = Svg(data["width"], data["height"], data["title"])
    places = {state["name"]: state for state in data["states"]}
    for move in data["moves"]:
        a, b = places[move["from"]], places[move["to"]]
        ends = []
        for one, other in ((a, b), (b, a)):
            dx, dy = other["x"] - one["x"], other["y"] - one["y"]
            part = min(width / 2 / abs(dx) if dx else 9, height / 2 / abs(dy) if dy else 9)
            ends += [one["x"] + dx * part, one["y"] + dy * part]
        svg.arrow(*ends)
        for i, words in enumerate(move["who"]):
            svg.text(move["x"], move["y"] + 15 * i, words, 11, TEXT, move.get("anchor", "middle"))
    for state in data["states"]:
        fill, stroke = {"good": ("#d0e2cd", "#3a6b35"), "bad": ("#efcfcf", "#b03030"), "none": ("#ffffff", LINE)}.get(
            state.get("kind"), ("#c9d6e6", "#30507a")
        )
        svg.rect(state["x"] - width / 2, state["y"] - height / 2, width, height, fill, stroke, 8)
        svg.text(state["x"], state["y"] - 3, state["name"], 14, TEXT, "middle", True)
        svg.text(state["x"], state["y"] + 15, state["poll"], 10, TEXT, "middle")
    svg.text(20, data["height"] - 16, data["note"], 11, FAINT)
    return svg.done()


PICTURES = {"pipeline": pipeline, "ticket": ticket}


def drawn(name):
    with open(os.path.join(HERE, name + ".json"), encoding="utf-8") as file:
        return PICTURES[name](json.load(file))


def record(program):
    """Which run is kept is no matter of taste: the one whose gain is the median."""
    tries = []
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "runs.json")
        for _ in range(RUNS):
            subprocess.run([program, path], check=True, stdout=subprocess.DEVNULL)
            with open(path, encoding="utf-8") as file:
                tries.append(json.load(file))
    tries.sort(key=lambda runs: runs[0]["span_ms"] / runs[1]["span_ms"])
    runs = tries[RUNS // 2]
    cpu = platform.machine()
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                cpu = line.split(":", 1)[1].strip()
                break
    kernel = platform.system() + " " + platform.release().split("-")[0]
    machine = {"cpu": cpu, "cores": os.cpu_count(), "kernel": kernel}
    date = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    head = {"date": date, "program": "examples/overlap.c", "device": "softmetal", "machine": machine}
    head["kept"] = f"of {RUNS} runs the one with the median gain"
    text = json.dumps(head)[:-1] + ',\n "runs": [\n'
    text += ",\n".join(
        f'  {{"depth": {run["depth"]}, "span_ms": {run["span_ms"]}, "chunks": [\n   '
        + ",\n   ".join(json.dumps(chunk) for chunk in run["chunks"]) + "]}" for run in runs)
    with open(os.path.join(HERE, "pipeline.json"), "w", encoding="utf-8") as file:
        file.write(text + "\n ]}\n")


def main(arguments):
    if arguments[:1] == ["--record"] and len(arguments) == 2:
        record(arguments[1])
    elif arguments not in ([], ["--check"]):
        sys.exit(__doc__)
    status = 0
    for name in PICTURES:
        path = os.path.join(HERE, name + ".svg")
        if arguments != ["--check"]:
            with open(path, "w", encoding="utf-8", newline="\n") as file:
                file.write(drawn(name))
            print(f"drawn: {path}")
            continue
        try:
            with open(path, encoding="utf-8", newline="") as file:
                same = file.read() == drawn(name)
        except OSError as error:
            same = False
            print(error)
        if not same:
            print(f"{name}.svg is not what {name}.json gives: call make pictures")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
