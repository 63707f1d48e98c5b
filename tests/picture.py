#!/usr/bin/env python3
"""picture.py - draws examples/killed.svg from a run of tests/picture/killed.c, from which each time in it comes

    eval "$(make -s softmetal)"; tests/picture.py [FILE]      writes the picture to FILE (examples/killed.svg)
"""
import json
import os
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
WIDTH, LEFT, RIGHT, LANE = 760, 112, 744, 25
COLOURS = {"killed": ("#cf222e", "#a40e26", "#fff"), "ends": ("#ddf4ff", "#0969da", "#1f2328"),
           "endless": ("#fff8c5", "#9a6700", "#1f2328")}
KILLED = ["killed", "gpu start producer", "gpu end producer", "works", "the system kills the command buffer"]
LANES = [  # headings; names with the bar's kind, the events where it begins and ends, the texts in it and behind it
    ["By hand"],
    ["GPU, queue 1", *KILLED],
    ["GPU, queue 2", "endless", "commit consumer", "wait end event", "waits for the signal of the killed command buffer"],
    ["CPU, thread 1", "ends", "wait begin producer", "wait end producer", "waits", "waitUntilCompleted returns, tells no error"],
    ["CPU, thread 2", "endless", "wait begin event", "wait end event", "waits for the signal, which never comes",
     "stops at the program’s own limit"],
    ["With gpusync"],
    ["GPU, queue 1", *KILLED],
    ["GPU, queue 2", "ends", "commit consumer", "completed consumer", "waits", "ends, too: {result}"],
    ["CPU", "ends", "wait begin timeline", "wait end timeline", "waits", "gpusync_timeline_wait returns {result}: {reason}"],
]
HEIGHT = 8 + LANE * len(LANES) + 42
HEAD = f"""<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"
role="img" aria-labelledby="title desc" font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif"
font-size="12" fill="#1f2328"><title id="title">A command buffer that the system kills, by hand and with gpusync</title>
<desc id="desc">By hand, waitUntilCompleted returns and tells no error. The command buffer of another queue and a thread
wait for the signal of the killed command buffer, which never comes. With gpusync both waits end with an error.</desc>
<rect x=".5" y=".5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="6" fill="#fff" stroke="#d0d7de"/>"""


def run():
    """The events of each row: event and label -> milliseconds and result."""
    build = '${CC:-cc} -I"$0" -I"$0/examples" ${CPPFLAGS?} "$0/tests/picture/killed.c" ${LDLIBS?} -o "$1/killed"'
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["sh", "-c", build, ROOT, folder], check=True)
        text = subprocess.check_output([f"{folder}/killed"], timeout=60, text=True)
    rows = {"By hand": {}, "With gpusync": {}}
    for each in map(json.loads, text.splitlines()):
        rows[each["row"]][f"{each['event']} {each['label']}"] = each["ms"], each["result"]
    return rows


def draw(rows):
    scale, parts = (RIGHT - LEFT) / (1.02 * max(ms for row in rows.values() for ms, _ in row.values())), [HEAD]

    def text(x, y, words, more=""):
        parts.append(f'<text x="{x:.1f}" y="{y:.1f}"{more}>{words}</text>')
    for ms in range(0, int((RIGHT - LEFT) / scale) + 1, 20):
        parts.append(f'<path d="M{LEFT + scale * ms:.1f},30V{HEIGHT - 38}" stroke="#d0d7de"/>')
        text(LEFT + scale * ms, HEIGHT - 24, ms, ' text-anchor="middle"')
    for y, (name, *bar) in zip(range(8, HEIGHT, LANE), LANES):
        text(12, y + 16, name, "" if bar else ' font-weight="bold"')
        if not bar:
            row = rows[name]
            continue
        kind, begin, end, within, *behind = bar
        (fill, stroke, ink), endless = COLOURS[kind], kind == "endless"
        x1, x2 = LEFT + scale * row[begin][0], LEFT + scale * row[end][0]
        edge = "".join(f"L{x2 - 5 * (k % 2):.1f},{y + 2 + 4.5 * k}" for k in (1, 2, 3)) if endless else ""
        shape = f"M{x1:.1f},{y + 2}H{x2:.1f}{edge}L{x2:.1f},{y + 20}H{x1:.1f}Z"
        parts.append(f'<path d="{shape}" fill="{fill}" stroke="{stroke}"/>')
        text(x1 + 7, y + 15.5, within, f' fill="{ink}"')
        for words in behind:
            words = words.format(result=row[end][1], reason=rows["With gpusync"]["reason producer"][1])
            text(x2 + (-10 if endless else 7), y + 15.5, words, ' text-anchor="end"' if endless else "")
    text(12, HEIGHT - 9, "ms from the commit on")
    text(RIGHT, HEIGHT - 9, "one run on softmetal, a Metal device in software", ' text-anchor="end" fill="#59636e"')
    return "\n".join([*parts, "</svg>\n"])


svg = draw(run())
with open(sys.argv[1] if len(sys.argv) > 1 else f"{ROOT}/examples/killed.svg", "w", encoding="utf-8") as file:
    file.write(svg)
