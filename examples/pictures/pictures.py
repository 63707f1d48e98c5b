#!/usr/bin/env python3
"""Draws the pictures of this directory from their JSON, the same bytes each time.

    pictures.py                          draws them, next to this file
    pictures.py --draw DIRECTORY         draws them there
    pictures.py --record TRACE OVERLAP   runs these programs (examples/trace.c, overlap.c) first, for trace.json and
                                         pipeline.json: overlap five times, of which the median gain is kept

trace.svg, pipeline.svg and ticket.svg are drawn from the JSON of the same name, waiting-*.svg from waiting.json, which
tests/bench/chart.sh keeps. No packages are needed. Each picture has the colours of a light page and those of a dark
one, and a background of its own: where a viewer does not ask for the dark ones, the light picture can be read.
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
RUNS = 5
STAGES = ("upload", "compute", "readback")

# What is drawn names one of these colours: on a light page, on a dark one. tests/pictures.sh looks at the contrast of
# all text in both.
COLOURS = {
    "ground": ("#ffffff", "#16191d"),
    "frame": ("#dddddd", "#3b4148"),
    "text": ("#222222", "#e8e8e8"),
    "faint": ("#5c5c5c", "#a9b0b8"),
    "line": ("#7c7c7c", "#959ca4"),
    "grid": ("#e4e4e4", "#2c3138"),
    "on-dark": ("#ffffff", "#101316"),  # on one of the next three
    "upload": ("#30507a", "#86b0ea"),
    "compute": ("#b03030", "#f0928a"),
    "readback": ("#3a6b35", "#86c47d"),
    "upload-pale": ("#c9d6e6", "#2b4364"),
    "compute-pale": ("#efcfcf", "#64302e"),
    "readback-pale": ("#d0e2cd", "#2d4d29"),
}

# What the contestants of tests/bench/peers.c do.
CONTESTANTS = {
    "gpusync": "as it is: the wait decides how long it spins",
    "gpusync 32/224": "spins for 32 pauses and 224 yields, then sleeps",
    "gpusync parked": "a spin of zeros: sleeps at once",
    "gpusync blocking": "options.blocking: waitUntilCompleted inside",
    "waitUntilCompleted": "Metal's call, for the last command buffer",
    "handler + condvar": "a handler counts, a condition variable wakes",
    "handler + semaphore": "the last buffer's handler signals a semaphore",
    "spin for ever": "reads the last buffer's status, with pauses",
    "spin + waitUntil...": "32 pauses, 224 yields, waitUntilCompleted",
    "spin + sentinel": "32 pauses, 224 yields, an empty buffer's handler",
    "sentinel + event": "an empty buffer signals a shared event",
    "signal in the work": "the last buffer signals a shared event",
    "status each 1 ms": "reads the status, sleeps 1 ms in between",
}


def number(x):
    """At most one digit behind the point, which is enough for pixels."""
    return f"{x:.1f}".removesuffix(".0")


def escape(words):
    return words.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")


def count(n):
    names = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
    return names[n] if n < len(names) else str(n)


class Svg:
    """Colours are names of COLOURS. They become classes: f-NAME fills, s-NAME strokes."""

    def __init__(self, width, height, title):
        self.width, self.height, self.title = width, height, title
        self.parts, self.classes = [], set()
        self.rect(0.5, 0.5, width - 1, height - 1, "ground", "frame", 6)

    def colour(self, fill=None, stroke=None):
        names = [f"f-{fill}"] * bool(fill) + [f"s-{stroke}"] * bool(stroke)
        self.classes.update(names)
        return f'class="{" ".join(names)}"' + ("" if fill else ' fill="none"')

    def text(self, x, y, words, size=13, fill="text", anchor="start", bold=False, upwards=False):
        more = f' text-anchor="{anchor}"' if anchor != "start" else ""
        more += ' font-weight="bold"' if bold else ""
        more += f' transform="rotate(-90 {number(x)} {number(y)})"' if upwards else ""
        self.parts.append(
            f'<text x="{number(x)}" y="{number(y)}" font-size="{size}" {self.colour(fill)}{more}>{escape(words)}</text>'
        )

    def rect(self, x, y, width, height, fill, stroke=None, rx=0):
        more = f' rx="{rx}"' if rx else ""
        self.parts.append(
            f'<rect x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}" '
            f"{self.colour(fill, stroke)}{more}/>"
        )

    def path(self, places, stroke="line", width=1):
        d = "M" + "L".join(f"{number(x)} {number(y)}" for x, y in places)
        self.parts.append(f'<path d="{d}" {self.colour(None, stroke)} stroke-width="{width}"/>')

    def polygon(self, places, fill):
        points = " ".join(f"{number(x)},{number(y)}" for x, y in places)
        self.parts.append(f'<polygon points="{points}" {self.colour(fill)}/>')

    def arrow(self, places):
        """With its point at the last place."""
        (x1, y1), (x2, y2) = places[-2:]
        length = math.hypot(x2 - x1, y2 - y1)
        dx, dy = (x2 - x1) / length, (y2 - y1) / length
        bx, by = x2 - 9 * dx, y2 - 9 * dy
        self.path(places[:-1] + [(bx, by)], "line", 1.5)
        self.polygon(((x2, y2), (bx - 4 * dy, by + 4 * dx), (bx + 4 * dy, by - 4 * dx)), "line")

    def begin(self, name, title=None):
        self.parts.append(f'<g id="{name}">' + (f"<title>{escape(title)}</title>" if title else ""))

    def end(self):
        self.parts.append("</g>")

    def legend(self, x, y, entries):
        """Lines of text, each behind its samples: a fill, a stroke, a width."""
        self.begin("legend")
        for samples, words in entries:
            place = x
            for fill, stroke, width in samples:
                self.rect(place, y - 10, width, 11, fill, stroke)
                place += width + 4
            self.text(place + 4 * bool(samples), y, words, 11, "faint")
            y += 18
        self.end()

    def done(self):
        rules = []
        for scheme in range(2):
            rules.append([
                f".{kind}-{name}{{{what}:{both[scheme]}}}" for name, both in COLOURS.items()
                for kind, what in (("f", "fill"), ("s", "stroke")) if f"{kind}-{name}" in self.classes])
        size = f'width="{self.width}" height="{self.height}" viewBox="0 0 {self.width} {self.height}"'
        return "\n".join([
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" '
            'font-family="DejaVu Sans, Verdana, sans-serif">',
            f"<title>{escape(self.title)}</title>",
            "<style>", *rules[0], "@media (prefers-color-scheme: dark) {", *rules[1], "}", "</style>",
            *self.parts, "</svg>", ""])


def where(data):
    machine = data["machine"]
    return (f"on softmetal (software, no GPU), {machine['cpu']}, {machine['cores']} cores, {data['date'][:10]}"
            + ", pinned" * data.get("settings", {}).get("pinned", False))


def head(svg, left, right, data):
    svg.text(left, 28, svg.title, 15)
    svg.text(right, 44, where(data), 11, "faint", "end")


def time_axis(svg, left, right, y, x, end_ms, step, what):
    svg.begin("axis-time")
    svg.path([(left, y), (right, y)])
    for ms in range(0, end_ms + 1, step):
        svg.path([(x(ms), y), (x(ms), y + 5)])
        svg.text(x(ms), y + 18, str(ms), 11, "faint", "middle")
    svg.text((left + right) / 2, y + 36, f"{what}, milliseconds (ms)", 12, "faint", "middle")
    svg.end()


def up_to(x, step):
    """The next multiple of the step."""
    return math.ceil(x / step) * step


def row(svg, left, right, y, lane, name):
    svg.text(left - 10, y + lane - 8, name, 12, name if name in STAGES else "text", "end")
    svg.path([(left, y + lane - 1.5), (right, y + lane - 1.5)], "grid")


WAITS_ON_GPU = "has begun on the GPU (softmetal plays it), and waits there for the stage before"


def pipeline(data):
    """Two runs above each other, with one axis. What is pale has begun on the device and waits for the stage before."""
    left, right, lane, top = 100, 870, 24, 76
    runs = data["runs"]
    end = up_to(max(run["span_ms"] for run in runs), 10)
    title = f"{count(len(runs[0]['chunks'])).capitalize()} chunks through three queues"
    svg = Svg(900, top + len(runs) * (3 * lane + 40) + 82, title)
    x = lambda ms: left + (right - left) * ms / end
    head(svg, left, right, data)
    y = top
    for run in runs:
        ratio = runs[0]["span_ms"] / run["span_ms"]
        gain = "" if run is runs[0] else f": {ratio:.1f} times as fast"
        svg.text(left, y, f"{count(run['depth'])} at a time, {run['span_ms']:.0f} ms{gain}", 12, bold=True)
        y += 8
        for stage in STAGES:
            row(svg, left, right, y, lane, stage)
            before = {"compute": "upload", "readback": "compute"}.get(stage)
            for i, chunk in enumerate(run["chunks"], 1):
                start, stop = chunk[stage]
                work = min(stop, max(start, chunk[before][1])) if before else start
                if work > start:
                    svg.rect(x(start), y + 3, x(work) - x(start), lane - 6, f"{stage}-pale")
                svg.rect(x(work), y + 3, x(stop) - x(work), lane - 6, stage, "ground")
                svg.text((x(work) + x(stop)) / 2, y + lane - 8, str(i), 10, "on-dark", "middle")
            y += lane
        y += 32
    y -= 20
    time_axis(svg, left, right, y, x, end, 10, "time since the run began")
    svg.legend(left, y + 62, [
        ([(stage, None, 14) for stage in STAGES], "runs; the number is that of the chunk"),
        ([(f"{stage}-pale", None, 14) for stage in STAGES[1:]], WAITS_ON_GPU)])
    return svg.done()


def read_trace(data):
    """Three dictionaries, of what the GPU ran, what was held and what the main thread waited for. The key is the queue
    and the number of the ticket, the value begin and end, in milliseconds."""
    names, gpu, held, waits, begun = {}, {}, {}, {}, {}
    for event in data["traceEvents"]:
        track = (event["pid"], event["tid"])
        if event["ph"] == "M":
            names.setdefault(track, {})[event["name"]] = event["args"]["name"]
            continue
        key = tuple(event["name"].split()[-2:])
        process, now = names[track]["process_name"], event["ts"] / 1e3
        if event["ph"] == "X":
            slices = {"GPU": gpu, "held": held}[process]
            assert key not in slices, f"twice: {process}, {key}"
            slices[key] = (now, now + event["dur"] / 1e3)
        elif event["ph"] == "B":
            begun[track] = now
        elif event["ph"] == "E" and names[track]["thread_name"] == "main":
            assert key not in waits, f"the main thread waits twice for {key}"
            waits[key] = (begun[track], now)
    return gpu, held, waits


def trace(data):
    """What the GPU ran, what was held, and the waits of the main thread: a row for each queue. So each row has a ticket
    at most once, and the rows of the GPU have each ticket."""
    left, right, lane, top = 100, 870, 24, 58
    gpu, held, waits = read_trace(data)
    groups = (("on the GPU", gpu), ("held on the host", held), ("the main thread waits for", waits))
    rows = [[stage for stage in STAGES if any(key[0] == stage for key in slices)] for _, slices in groups]
    end = up_to(max(stop for _, slices in groups for _, stop in slices.values()), 5)
    svg = Svg(900, top + sum(map(len, rows)) * lane + len(groups) * 28 + 136, "Eight frames through three queues")
    x = lambda ms: left + (right - left) * ms / end
    head(svg, left, right, data)
    y = top
    for (heading, slices), stages in zip(groups, rows):
        svg.text(left, y + 14, heading, 12, bold=True)
        y += 22
        for stage in stages:
            row(svg, left, right, y, lane, stage)
            before = {"compute": "upload", "readback": "compute"}.get(stage)
            last = 0
            for (start, stop), n in sorted((when, key[1]) for key, when in slices.items() if key[0] == stage):
                middle = (x(start) + x(stop)) / 2
                if slices is gpu:
                    work = min(stop, max(start, gpu[before, n][1] if before else 0, last))
                    svg.begin(f"{stage}-{n}", f"{stage} {n}: runs from {work:.1f} to {stop:.1f} ms")
                    if work > start:
                        svg.rect(x(start), y + 3, x(work) - x(start), lane - 6, f"{stage}-pale")
                    svg.rect(x(work), y + 3, x(stop) - x(work), lane - 6, stage, "ground")
                    svg.text((x(work) + x(stop)) / 2, y + lane - 8, n, 10, "on-dark", "middle")
                    last = stop
                elif slices is held:
                    svg.begin(f"held-{stage}-{n}", f"{stage} {n}: held for {1e3 * (stop - start):.0f} us")
                    svg.rect(middle - 1, y + 3, max(2, x(stop) - x(start)), lane - 6, stage)
                    svg.text(middle + 5, y + lane - 8, n, 10)
                else:
                    svg.begin(f"wait-{stage}-{n}", f"waits for {stage} {n} from {start:.1f} to {stop:.1f} ms")
                    svg.rect(x(start), y + 3.5, x(stop) - x(start), lane - 7, "ground", stage)
                    svg.text(middle, y + lane - 8, n, 10, "text", "middle")
                svg.end()
            y += lane
        y += 6
    time_axis(svg, left, right, y + 6, x, end, 5, "time since the trace began")
    us = sorted(1e3 * (stop - start) for start, stop in held.values())
    svg.legend(left, y + 68, [
        ([(stage, None, 14) for stage in STAGES],
         "runs; the number is that of the ticket on its queue, and of the frame"),
        ([(f"{stage}-pale", None, 14) for stage in STAGES[1:]], WAITS_ON_GPU),
        ([(stage, None, 2) for stage in STAGES[1:]],
         f"held, for {us[0]:.0f} to {us[-1]:.0f} microseconds: what it waits for is not committed yet"),
        ([("ground", stage, 14) for stage in STAGES],
         "the main thread waits for this ticket, or for the value that it signals")])
    return svg.done()


def ticket(data):
    """States as boxes, moves as arrows from edge to edge, or through places, each with who makes it."""
    width, height = 132, 56
    kinds = {"none": ("ground", "line"), "open": ("upload-pale", "upload"), "good": ("readback-pale", "readback"),
             "bad": ("compute-pale", "compute")}
    svg = Svg(data["width"], data["height"], data["title"])
    svg.text(20, 28, data["title"], 15)
    places = {state["name"]: state for state in data["states"]}
    for move in data["moves"]:
        a, b = places[move["from"]], places[move["to"]]
        through = [tuple(place) for place in move.get("through", [])]
        if not through:
            for one, other in ((a, b), (b, a)):
                dx, dy = other["x"] - one["x"], other["y"] - one["y"]
                part = min(width / 2 / abs(dx) if dx else 9, height / 2 / abs(dy) if dy else 9)
                through.append((one["x"] + dx * part, one["y"] + dy * part))
        svg.begin(f"{move['from']}-to-{move['to']}")
        svg.arrow(through)
        for i, words in enumerate(move["who"]):
            svg.text(move["x"], move["y"] + 15 * i, words, 11, "text", move.get("anchor", "middle"))
        svg.end()
    for state in data["states"]:
        svg.begin(f"state-{state['name']}")
        svg.rect(state["x"] - width / 2, state["y"] - height / 2, width, height, *kinds[state["kind"]], 8)
        svg.text(state["x"], state["y"] - 3, state["name"], 14, "text", "middle", True)
        svg.text(state["x"], state["y"] + 15, state["poll"], 11, "text", "middle")
        svg.end()
    legend = [([(*kinds[kind], 14)], words) for kind, words in data["kinds"].items()]
    legend += [([], words) for words in data["notes"]]
    svg.legend(20, data["height"] - 18 * len(legend), legend)
    return svg.done()


def steps(low, high):
    """The marks of a logarithmic axis."""
    digits = (1, 2, 5) if high / low > 20 else (1, 1.5, 2, 3, 4, 5, 7)
    return [d * 10**k for k in range(-3, 7) for d in digits if low * 0.999 <= d * 10**k <= high * 1.001]


def ends(values):
    """Where a logarithmic axis begins and ends: at 1, 2 or 5 times a power of ten."""
    marks = [d * 10**k for k in range(-3, 7) for d in (1, 2, 5)]
    low, high = min(values) / 1.15, max(values) * 1.15
    return max(mark for mark in marks if mark <= low), min(mark for mark in marks if mark >= high)


def touch(a, b):
    """Do two boxes (left, top, right, bottom) have a point in common?"""
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def labels(points, frame):
    """A place for the name of each point (x, y, name): x, y, anchor, distance, and the y where a line to it ends. A
    name covers no point, no other name and no line to one. Of some orders the one with the shortest lines counts."""
    dots = [(x - 7, y - 7, x + 7, y + 7) for x, y, _ in points]

    def line(x1, y1, x2, y2):  # as small boxes
        n = max(1, int(math.hypot(x2 - x1, y2 - y1) / 3))
        spots = [(x1 + (x2 - x1) * i / n, y1 + (y2 - y1) * i / n) for i in range(n + 1)]
        return [(x - 1.5, y - 1.5, x + 1.5, y + 1.5) for x, y in spots]

    def place(i, taken):
        x, y, name = points[i]
        wide = 7.2 * len(name)
        others = taken + dots[:i] + dots[i + 1 :]
        for far in range(11, 420, 6):
            for turn in range(48):
                angle = (turn + 1) // 2 * (1 if turn % 2 else -1) * math.pi / 24
                cx, cy = x + far * math.cos(angle), y - far * math.sin(angle)
                anchor = "start" if math.cos(angle) > 0.3 else "end" if math.cos(angle) < -0.3 else "middle"
                left = cx - {"start": 0, "end": wide, "middle": wide / 2}[anchor]
                box = (left - 2, cy - 8, left + wide + 2, cy + 8)
                inside = frame[0] < box[0] and box[2] < frame[2] and frame[1] < box[1] and box[3] < frame[3]
                if not inside or any(touch(box, other) for other in others + [dots[i]]):
                    continue
                edge = cy if anchor != "middle" else cy + 7 if cy < y else cy - 7
                way = line(x, y, cx, edge) if far > 11 else []
                clear = [spot for spot in way if math.hypot(spot[0] - x, spot[1] - y) > 13]
                if not any(touch(spot, other) for spot in clear for other in others):
                    return (cx, cy, anchor, far, edge), [box] + way
        return None, []

    def crowd(i):
        return sum(1 / (1 + math.hypot(x - points[i][0], y - points[i][1])) for x, y, _ in points)

    best = None
    alone_first = sorted(range(len(points)), key=crowd)
    for base in (alone_first, alone_first[::-1]):
        for turn in range(len(base)):
            taken, found = [], {}
            for i in base[turn:] + base[:turn]:
                found[i], boxes = place(i, taken)
                taken += boxes
            cost = sum(spot[3] if spot else 1e9 for spot in found.values())
            if best is None or cost < best[0]:
                best = (cost, found)
    assert best[0] < 1e9, "no room for all names"
    return [best[1][i] for i in range(len(points))]


def waiting(data, kernel_us):
    """Latency against processor time, a point for each contestant, and below the key to their names."""
    left, right, top, bottom = 84, 870, 64, 424
    rows = [row for row in data["rows"] if row["kernel_us"] == kernel_us and row["commits"] == 1]
    cpu, late = [row["cpu_us"]["p50"] for row in rows], [row["latency_us"]["p50"] for row in rows]
    (x1, x2), (y1, y2) = ends(cpu), ends(late)
    x = lambda us: left + (right - left) * math.log(us / x1) / math.log(x2 / x1)
    y = lambda us: bottom - (bottom - top) * math.log(us / y1) / math.log(y2 / y1)
    half = (len(rows) + 1) // 2
    svg = Svg(900, bottom + 92 + 16 * half + 60, f"Waits for a kernel of {kernel_us} us, with one commit a wait")
    head(svg, left, right, data)
    svg.begin("axis-x")
    for us in steps(x1, x2):
        svg.path([(x(us), top), (x(us), bottom)], "grid")
        svg.path([(x(us), bottom), (x(us), bottom + 5)])
        svg.text(x(us), bottom + 18, f"{us:g}", 11, "faint", "middle")
    svg.path([(left, bottom), (right, bottom)])
    svg.text((left + right) / 2, bottom + 36, "processor time of the process for a turn (the commit and its wait), "
             "median, microseconds (us), logarithmic", 12, "faint", "middle")
    svg.end()
    svg.begin("axis-y")
    for us in steps(y1, y2):
        svg.path([(left, y(us)), (right, y(us))], "grid")
        svg.path([(left - 5, y(us)), (left, y(us))])
        svg.text(left - 9, y(us) + 4, f"{us:g}", 11, "faint", "end")
    svg.path([(left, top), (left, bottom)])
    svg.text(20, (top + bottom) / 2, "from the GPU's end to the wait's return,", 12, "faint", "middle", upwards=True)
    svg.text(36, (top + bottom) / 2, "median, microseconds (us), logarithmic", 12, "faint", "middle", upwards=True)
    svg.end()

    def mark(px, py, own):  # of different shape, for who sees no difference of the colours
        if own:
            svg.parts.append(f'<circle cx="{number(px)}" cy="{number(py)}" r="5.5" {svg.colour("compute", "ground")}/>')
        else:
            svg.polygon(((px, py - 6), (px + 6, py), (px, py + 6), (px - 6, py)), "upload")

    points = [(x(us), y(wait), row["contestant"]) for us, wait, row in zip(cpu, late, rows)]
    names = labels(points, (left, top, right, bottom))
    for (px, py, _), (lx, _, _, far, edge) in zip(points, names):
        if far > 11:
            svg.path([(px, py), (lx, edge)])
    for px, py, name in sorted(points, key=lambda point: point[2].startswith("gpusync")):
        mark(px, py, name.startswith("gpusync"))
    for (_, _, name), (lx, ly, anchor, _, _) in zip(points, names):
        svg.text(lx, ly + 4, name, 12, "compute" if name.startswith("gpusync") else "text", anchor)

    svg.begin("legend")
    line = bottom + 66
    mark(27, line - 4, True)
    svg.text(40, line, "gpusync, in four ways", 11, "faint")
    mark(207, line - 4, False)
    svg.text(220, line, "other schemes. Further down: the wait returns sooner. Further left: less processor time.",
             11, "faint")
    for i, row in enumerate(rows):
        name = row["contestant"]
        place, down = 20 + 440 * (i // half), line + 26 + 16 * (i % half)
        svg.text(place, down, name, 11, "compute" if name.startswith("gpusync") else "text")
        svg.text(place + 132, down, CONTESTANTS[name], 11, "faint")
    svg.text(20, line + 26 + 16 * half + 10, "kernel: the GPU's work. spin: look again and again. pause, yield: of the "
             "processor, of the thread. handler: Metal calls it at the end of a command buffer.", 11, "faint")
    svg.text(20, line + 26 + 16 * half + 26, "buffer: command buffer. sentinel: an empty one behind the work. "
             "status: Metal's, of a command buffer.", 11, "faint")
    svg.text(20, line + 26 + 16 * half + 42, "us: microseconds. ms: milliseconds."
             + " pinned: the program and softmetal have a processor each." * data["settings"]["pinned"], 11, "faint")
    svg.end()
    return svg.done()


PICTURES = {
    "trace": ("trace", trace),
    "pipeline": ("pipeline", pipeline),
    "ticket": ("ticket", ticket),
    "waiting-150": ("waiting", lambda data: waiting(data, 150)),
    "waiting-1000": ("waiting", lambda data: waiting(data, 1000)),
}


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
    for name, (source, draw) in PICTURES.items():
        with open(os.path.join(HERE, source + ".json"), encoding="utf-8") as file:
            data = json.load(file)
        path = os.path.join(directory, name + ".svg")
        with open(path, "w", encoding="utf-8", newline="\n") as file:
            file.write(draw(data))
        print(f"drawn: {path}")


if __name__ == "__main__":
    main(sys.argv[1:])
