#!/usr/bin/env python3
"""Draws trace.svg, pipeline.svg and ticket.svg from the JSON of the same name, the same bytes each time.

    pictures.py                          draws them, next to this file
    pictures.py --draw DIRECTORY         draws them there
    pictures.py --record TRACE OVERLAP   runs these programs (examples/trace.c, overlap.c) first, for trace.json and
                                         pipeline.json: overlap five times, of which the median gain is kept

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


def where(data):
    machine = data["machine"]
    return f"softmetal, no GPU. {machine['cpu']}, {machine['cores']} cores, {data['date'][:10]}"


def axis(svg, left, right, y, x, end_ms, step, of_ms):
    svg.line(left, y, right, y)
    for ms in range(0, int(end_ms) + 1, step):
        svg.line(x(of_ms(ms)), y, x(of_ms(ms)), y + 5)
        svg.text(x(of_ms(ms)), y + 18, f"{ms} ms", 11, FAINT, "middle")


def pipeline(data):
    """Two runs above each other, with one axis. What is pale has begun on the device and waits for the stage before."""
    left, right, lane, top = 100, 870, 24, 62
    runs = data["runs"]
    end = max(run["span_ms"] for run in runs)
    svg = Svg(900, top + len(runs) * (3 * lane + 50) + 42, "chunks through three queues, one and three at a time")
    x = lambda ms: left + (right - left) * ms / end
    svg.text(left, 28, f"{len(runs[0]['chunks'])} chunks through three queues", 15)
    svg.text(right, 28, where(data), 10, FAINT, "end")
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
    axis(svg, left, right, y, x, end, 20, lambda ms: ms)
    svg.rect(left, y + 28, 14, 12, STAGES["compute"][1])
    svg.text(left + 20, y + 38, "has begun on the device, and waits for the stage before", 11, FAINT)
    return svg.done()


def trace(data):
    """What the GPU ran, what was held, and the waits of the main thread: a track for each that has something."""
    left, right, lane, top = 100, 870, 24, 50
    names, tracks, begun = {}, {}, {}
    for event in data["traceEvents"]:
        kind, track = event["ph"], (event["pid"], event["tid"])
        if kind == "M":
            names.setdefault(track, {})[event["name"]] = event["args"]["name"]
        elif kind == "X":
            tracks.setdefault(track, []).append((event["ts"], event["ts"] + event["dur"], event["name"].split()[-1]))
        elif kind == "B":
            begun[track] = event["ts"]
        elif kind == "E" and names[track]["thread_name"] == "main":
            tracks.setdefault(track, []).append((begun[track], event["ts"], event["name"].split()[-1]))
    gpu = {names[track]["thread_name"]: dict((n, stop) for _, stop, n in slices)
           for track, slices in tracks.items() if names[track]["process_name"] == "GPU"}
    end = max(stop for slices in tracks.values() for _, stop, _ in slices)
    groups = {"GPU": "on the GPU", "held": "held on the host", "threads": "waits"}
    after = {"compute": "upload", "readback": "compute"}
    svg = Svg(900, top + len(tracks) * lane + len(groups) * 24 + 72, "eight frames through three queues, from a trace")
    x = lambda us: left + (right - left) * us / end
    svg.text(left, 28, "Eight frames through three queues", 15)
    svg.text(right, 28, where(data), 10, FAINT, "end")
    y = top
    for group in groups:
        svg.text(left, y + 14, groups[group], 12, bold=True)
        y += 20
        for track in sorted(track for track in tracks if names[track]["process_name"] == group):
            name = names[track]["thread_name"]
            dark, pale = STAGES.get(name, (LINE, "#eeeeee"))
            svg.text(left - 10, y + lane - 8, name, 12, dark if name in STAGES else TEXT, "end")
            svg.rect(left, y + lane - 2, right - left, 0.8, "#e4e4e4")
            last = 0
            for start, stop, n in sorted(tracks[track]):
                runs = group == "GPU"
                before = gpu[after[name]][n] if runs and name in after else 0
                work = min(stop, max(start, before, last)) if runs else start
                if work > start:
                    svg.rect(x(start), y + 3, x(work) - x(start), lane - 6, pale)
                svg.rect(x(work), y + 3, max(1, x(stop) - x(work)), lane - 6, dark if runs else pale, dark)
                if x(stop) - x(work) > 10:
                    middle = (x(work) + x(stop)) / 2
                    svg.text(middle, y + lane - 8, n, 10, "#ffffff" if runs else TEXT, "middle")
                last = stop
            y += lane
        y += 4
    axis(svg, left, right, y + 6, x, end / 1e3, 5, lambda ms: ms * 1e3)
    svg.rect(left, y + 34, 14, 12, STAGES["readback"][1])
    svg.text(left + 20, y + 44, "has begun on the device, and waits for the stage before", 11, FAINT)
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


PICTURES = {"trace": trace, "pipeline": pipeline, "ticket": ticket}


def measured_here(program):
    """When, and on what: the beginning of a JSON."""
    cpu = platform.machine()
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                cpu = line.split(":", 1)[1].strip()
                break
    kernel = platform.system() + " " + platform.release().split("-")[0]
    machine = {"cpu": cpu, "cores": os.cpu_count(), "kernel": kernel}
    date = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {"date": date, "program": program, "device": "softmetal", "machine": machine}


def run(program):
    """The JSON that the program writes."""
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "run.json")
        subprocess.run([program, path], check=True, stdout=subprocess.DEVNULL)
        with open(path, encoding="utf-8") as file:
            return json.load(file)


def keep(name, head, list_name, parts):
    with open(os.path.join(HERE, name + ".json"), "w", encoding="utf-8") as file:
        file.write(json.dumps(head)[:-1] + f',\n "{list_name}": [\n' + ",\n".join(parts) + "\n ]}\n")


def record(trace_program, overlap_program):
    """Which run of overlap is kept is no matter of taste: the one whose gain is the median."""
    events = run(trace_program)["traceEvents"]
    keep("trace", measured_here("examples/trace.c"), "traceEvents", ["  " + json.dumps(event) for event in events])
    tries = [run(overlap_program) for _ in range(RUNS)]
    tries.sort(key=lambda runs: runs[0]["span_ms"] / runs[1]["span_ms"])
    head = measured_here("examples/overlap.c")
    head["kept"] = f"of {RUNS} runs the one with the median gain"
    keep("pipeline", head, "runs", [
        f'  {{"depth": {run["depth"]}, "span_ms": {run["span_ms"]}, "chunks": [\n   '
        + ",\n   ".join(json.dumps(chunk) for chunk in run["chunks"]) + "]}" for run in tries[RUNS // 2]])


def main(arguments):
    directory = HERE
    if arguments[:1] == ["--record"] and len(arguments) == 3:
        record(*arguments[1:])
    elif arguments[:1] == ["--draw"] and len(arguments) == 2:
        directory = arguments[1]
    elif arguments:
        sys.exit(__doc__)
    for name, draw in PICTURES.items():
        with open(os.path.join(HERE, name + ".json"), encoding="utf-8") as file:
            data = json.load(file)
        path = os.path.join(directory, name + ".svg")
        with open(path, "w", encoding="utf-8", newline="\n") as file:
            file.write(draw(data))
        print(f"drawn: {path}")


if __name__ == "__main__":
    main(sys.argv[1:])
