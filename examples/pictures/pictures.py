#!/usr/bin/env python3
"""Draws the pictures of this directory from their JSON, the same bytes each time.

    pictures.py                       draws them, next to this file
    pictures.py --draw DIRECTORY      draws them there
    pictures.py --record PROGRAM...   runs these programs first, and keeps what they measure:
                                      trace     of examples/trace.c: trace.json
                                      overlap   of examples/overlap.c: pipeline.json; the median gain of five runs
                                      bench     of tests/bench: waiting.json; the medians of five runs

Each picture is drawn from the JSON of the same name. No packages are needed. Each picture has the colours of a light
page and those of a dark one, and a background of its own: where a viewer does not ask for the dark ones, the light
picture can be read.
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

# What waiting.svg shows: contestants of tests/bench/peers.c with the names, colours, widths, dashes and marks of their
# lines. The first line is drawn first, below the others.
WAYS = {
    "gpusync": ("gpusync (default)", "compute", 5, None, "circle"),
    "gpusync parked": ("gpusync, sleeps at once", "compute", 2, "7 4", "circle"),
    "waitUntilCompleted": ("waitUntilCompleted", "text", 1.5, None, "square"),
    "handler + semaphore": ("handler + semaphore", "text", 1.5, "2 3", "triangle"),
    "spin for ever": ("spins until the end", "upload", 2, None, "diamond"),
}
WAITING_US = (20, 50, 150, 300, 1000, 3000, 14000)
WAITING_ROUNDS = 12  # a contestant then comes after each of the others once


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

    def path(self, places, stroke="line", width=1, dash=None):
        d = "M" + "L".join(f"{number(x)} {number(y)}" for x, y in places)
        more = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(f'<path d="{d}" {self.colour(None, stroke)} stroke-width="{width}"{more}/>')

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

    def mark(self, x, y, shape, fill):
        """Marks differ in shape, too, for a reader to whom the colours look alike."""
        if shape == "circle":
            self.parts.append(f'<circle cx="{number(x)}" cy="{number(y)}" r="5" {self.colour(fill, "ground")}/>')
            return
        corners = {"square": ((-4, -4), (4, -4), (4, 4), (-4, 4)), "triangle": ((0, -5), (5, 4), (-5, 4)),
                   "diamond": ((0, -6), (6, 0), (0, 6), (-6, 0))}[shape]
        self.polygon([(x + dx, y + dy) for dx, dy in corners], fill)

    def legend(self, x, y, entries, size=11):
        """Lines of text, each behind its samples: a fill, a stroke, a width."""
        self.begin("legend")
        for samples, words in entries:
            place = x
            for fill, stroke, width in samples:
                self.rect(place, y - 10, width, 11, fill, stroke)
                place += width + 4
            self.text(place + 4 * bool(samples), y, words, size, "faint")
            y += size + 7
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
    return f"on softmetal (software, no GPU), {machine['cpu']}, {machine['cores']} cores, {data['date'][:10]}"


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
    """States as boxes, moves as arrows from edge to edge, or through places, each with what makes it."""
    width, height = 164, 56
    kinds = {"none": ("ground", "line"), "open": ("upload-pale", "upload"), "good": ("readback-pale", "readback"),
             "bad": ("compute-pale", "compute")}
    svg = Svg(data["width"], data["height"], data["title"])
    svg.text(20, 30, data["title"], 16)
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
        svg.text(move["x"], move["y"], move["by"], 13, "text", move.get("anchor", "middle"))
        svg.end()
    for state in data["states"]:
        svg.begin(f"state-{state['name']}")
        svg.rect(state["x"] - width / 2, state["y"] - height / 2, width, height, *kinds[state["kind"]], 8)
        svg.text(state["x"], state["y"] - 4, state["name"], 16, "text", "middle", True)
        svg.text(state["x"], state["y"] + 17, state["poll"], 13, "text", "middle")
        svg.end()
    svg.legend(20, data["height"] - 18, [([], data["key"])], 13)
    return svg.done()


def spread(wanted, apart):
    """Heights as near to the wanted ones, which rise, as this distance between them lets them be."""
    groups = []  # each: the mean of what its members want for the first of them, how many they are
    for place in wanted:
        first, count = place, 1
        while groups and groups[-1][0] + groups[-1][1] * apart > first:
            before, members = groups.pop()
            first = (before * members + (first - members * apart) * count) / (members + count)
            count += members
        groups.append((first, count))
    return [first + i * apart for first, count in groups for i in range(count)]


def ways(svg, name, rows, value, x, y, place):
    """The lines of a panel, each with its name behind its end."""
    ends = []
    for way, (label, colour, width, dash, shape) in WAYS.items():
        points = sorted((x(row["kernel_us"]), y(value(row))) for row in rows if row["contestant"] == way)
        svg.begin(f"{name} {way}".replace(" ", "-"))
        svg.path(points, colour, width, dash)
        for point in points:
            svg.mark(*point, shape, colour)
        svg.end()
        ends.append((points[-1][::-1], label, colour, width, shape))
    ends.sort()
    svg.begin(f"{name}-names")
    for ((py, px), label, colour, width, shape), ly in zip(ends, spread([end[0][0] for end in ends], 18)):
        svg.path([(px + 9, py), (place - 16, ly), (place - 4, ly)], colour, 0.75)
        svg.mark(place, ly, shape, colour)
        svg.text(place + 10, ly + 4.5, label, 13, colour, bold=width > 2)
    svg.end()


def waiting(data):
    """Two panels over one axis, the length of the work: how late a wait is, and the processor time that it costs."""
    left, right, top, high = 68, 596, 96, 200
    rows, second = data["rows"], top + high + 52
    svg = Svg(830, second + high + 112, "What a wait costs, by the length of the work")
    svg.text(20, 30, svg.title, 16)
    machine = data["machine"]
    svg.text(20, 54, f"Measured on softmetal, a software device, on Linux, not on Apple hardware: {machine['cpu']}, "
             f"{machine['cores']} cores, {data['date'][:10]}", 13, "faint")

    def scale(low, high, start, stop):
        return lambda value: start + (stop - start) * math.log(value / low) / math.log(high / low)

    x = scale(15, 20000, left, right)
    late, cpu = scale(2, 200, top + high, top), scale(0.5, 300, second + high, second)
    marks = {us: f"{us} us" if us < 1000 else f"{us // 1000} ms"
             for us in (20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000)}
    panels = (("latency", top, late, {n: f"{n} us" for n in (2, 5, 10, 20, 50, 100, 200)},
               "Latency: from the GPU's end to the return of the wait, microseconds (us)"),
              ("cpu", second, cpu, {n: f"{n} %" for n in (1, 2, 5, 10, 20, 50, 100, 200)},
               "Processor time of a commit and its wait, % of the length of the work"))
    for name, begin, y, values, what in panels:
        svg.begin(f"axis-{name}")
        svg.text(20, begin - 12, what, 13, bold=True)
        for us in marks:
            svg.path([(x(us), begin), (x(us), begin + high)], "grid")
        for n, words in values.items():
            svg.path([(left, y(n)), (right, y(n))], "grid")
            svg.text(left - 8, y(n) + 4.5, words, 13, "faint", "end")
        svg.path([(left, begin), (left, begin + high), (right, begin + high)])
        svg.end()
    svg.begin("axis-x")
    for us, words in marks.items():
        svg.path([(x(us), second + high), (x(us), second + high + 5)])
        svg.text(x(us), second + high + 20, words, 13, "faint", "middle")
    svg.text((left + right) / 2, second + high + 42, "length of the work on the GPU: microseconds (us), milliseconds (ms)",
             13, "faint", "middle")
    svg.end()
    ways(svg, "latency", rows, lambda row: row["latency_us"], x, late, right + 38)
    ways(svg, "cpu", rows, lambda row: 100 * row["cpu_us"] / row["kernel_us"], x, cpu, right + 38)
    svg.legend(20, second + high + 74, [
        ([], "One commit, then its wait; work of one length again and again, so that gpusync knows when it will end."),
        ([], f"Medians of {count(data['runs'])} runs of {count(data['settings']['rounds'])} rounds."
         + " The program and softmetal have a processor each." * data["settings"]["pinned"])], 13)
    return svg.done()


PICTURES = {"trace": trace, "pipeline": pipeline, "ticket": ticket, "waiting": waiting}


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
    """The JSON that the program writes: an example to its argument, the benchmark to BENCH_JSON."""
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "run.json")
        subprocess.run([program, path], check=True, stdout=subprocess.DEVNULL, env={**os.environ, "BENCH_JSON": path})
        with open(path, encoding="utf-8") as file:
            return json.load(file)


def keep(name, head, list_name, parts):
    with open(os.path.join(HERE, name + ".json"), "w", encoding="utf-8") as file:
        file.write(json.dumps(head)[:-1] + f',\n "{list_name}": [\n' + ",\n".join(parts) + "\n ]}\n")


def record_trace(program):
    events = run(program)["traceEvents"]
    keep("trace", measured_here("examples/trace.c"), "traceEvents", ["  " + json.dumps(event) for event in events])


def record_overlap(program):
    """Which run is kept is no matter of taste: the one whose gain is the median."""
    tries = [run(program) for _ in range(RUNS)]
    tries.sort(key=lambda runs: runs[0]["span_ms"] / runs[1]["span_ms"])
    head = measured_here("examples/overlap.c")
    head["kept"] = f"of {RUNS} runs the one with the median gain"
    keep("pipeline", head, "runs", [
        f'  {{"depth": {run["depth"]}, "span_ms": {run["span_ms"]}, "chunks": [\n   '
        + ",\n   ".join(json.dumps(chunk) for chunk in run["chunks"]) + "]}" for run in tries[RUNS // 2]])


def record_bench(program):
    """The medians of runs that each have all lengths, so that a busy minute is no length's alone; nor is it a contestant's,
    as each has its turn in each round."""
    only = ",".join(f"{us} us x 1" for us in WAITING_US)
    os.environ.update(BENCH_ROUNDS=str(WAITING_ROUNDS), BENCH_ONLY=only)
    tries = [run(program) for _ in range(RUNS)]
    head = measured_here("tests/bench/waiting.c")
    head.update(kept=f"medians of {RUNS} runs", runs=RUNS, settings=tries[0]["settings"])

    def median(i, what):
        return sorted(data["rows"][i][what]["p50"] for data in tries)[RUNS // 2]

    keep("waiting", head, "rows", [
        "  " + json.dumps({"kernel_us": row["kernel_us"], "contestant": row["contestant"],
                           "latency_us": median(i, "latency_us"), "cpu_us": median(i, "cpu_us")})
        for i, row in enumerate(tries[0]["rows"]) if row["contestant"] in WAYS])


def main(arguments):
    directory = HERE
    if arguments[:1] == ["--record"] and len(arguments) > 1:
        records = {"trace": record_trace, "overlap": record_overlap, "bench": record_bench}
        for program in arguments[1:]:
            records[os.path.basename(program)](program)
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
