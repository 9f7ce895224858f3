#!/usr/bin/env python3
"""Draws a part of a timeline as SVG, for documents: a track for each stage of each rank.

    scripts/draw_timeline.py TIMELINE SVG [--from MS] [--length MS]

TIMELINE is a file of tracks: ruedarun --timeline FILE --timeline-all-ranks, or one of a rank with {rank} in its name.
Times count from its first event; by default the middle of the run is drawn, one step and a half. Viewers show far more:
https://ui.perfetto.dev opens the file itself.
"""
import argparse
import json
from html import escape
from pathlib import Path

STAGES = ["backward", "submitted", "negotiated", "queued", "packed", "on the wire", "unpacked", "optimizer step"]
COLOURS = ["#4878a8", "#b0b0b0", "#c9a227", "#d08770", "#7fa650", "#2e7d5b", "#7fa650", "#8e5ea2"]
WIDTH, LEFT, ROW, GAP, BAR = 900, 130, 17, 14, 12


def read(path):
    """(names of ranks, slices as (rank, stage, begin, end, name, bytes), arrows as lists of (rank, stage, time))."""
    names, slices, ends, stage_of = {}, [], {}, {}
    for event in json.loads(Path(path).read_text(encoding="utf-8")):
        rank = event["pid"]
        if event["name"] == "process_name":
            names[rank] = event["args"]["name"].split(" (")[0]
        elif event["name"] == "thread_name":
            stage_of[rank, event["tid"]] = event["args"]["name"].rstrip("0123456789").strip()
        elif event["ph"] == "X" and event.get("cat") in STAGES:
            begin = event["ts"]
            slices.append((rank, event["cat"], begin, begin + event["dur"], event["name"], event["args"].get("bytes")))
        elif event["ph"] in "sf":
            ends.setdefault(event["id"], []).append((rank, stage_of[rank, event["tid"]], event["ts"]))
    if not slices:
        raise SystemExit(f"{path} has no tracks: make it with {{rank}} in its name, or --timeline-all-ranks")
    return names, slices, [both for both in ends.values() if len(both) == 2]


def window(slices, begin, length):
    """What to draw: absolute times in microseconds."""
    first, last = min(s[2] for s in slices), max(s[3] for s in slices)
    steps = sorted(s[2] for s in slices if s[0] == slices[0][0] and s[1] == "optimizer step")
    middle = steps[len(steps) // 2] if steps else (first + last) / 2
    step = (steps[-1] - steps[0]) / (len(steps) - 1) if len(steps) > 1 else (last - first) / 10
    start = first + begin * 1000 if begin is not None else middle + 0.02 * step
    return start, start + (length * 1000 if length is not None else 1.5 * step)


def draw(names, slices, arrows, begin, end):
    rows = {(rank, stage): i for i, (rank, stage) in enumerate((r, s) for r in sorted(names) for s in STAGES)}

    def x(time):
        return LEFT + (min(max(time, begin), end) - begin) / (end - begin) * (WIDTH - LEFT - 10)

    def y(rank, stage):
        return 24 + rows[rank, stage] * ROW + sorted(names).index(rank) * GAP

    height = 24 + len(rows) * ROW + len(names) * GAP + 18
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="10">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
    ]
    for rank, name in sorted(names.items()):
        top = y(rank, STAGES[0])
        out.append(f'<text x="4" y="{top - 3}" font-weight="bold">{escape(name)}</text>')
        for stage in STAGES:
            at = y(rank, stage)
            out.append(f'<rect x="{LEFT}" y="{at}" width="{WIDTH - LEFT - 10}" height="{BAR}" fill="#f4f4f4"/>')
            out.append(f'<text x="{LEFT - 6}" y="{at + 10}" text-anchor="end">{stage}</text>')
    for rank, stage, start, stop, name, size in slices:
        if stop < begin or start > end:
            continue
        wide = max(x(stop) - x(start), 0.6)
        title = escape(f"{name}, {stop - start:.0f} us" + (f", {size} bytes" if size else ""))
        out.append(
            f'<rect x="{x(start):.1f}" y="{y(rank, stage)}" width="{wide:.1f}" height="{BAR}" fill-opacity="0.75" '
            f'fill="{COLOURS[STAGES.index(stage)]}"><title>{title}</title></rect>'
        )
    for one, two in arrows:
        if not (begin <= one[2] and two[2] <= end and one[1] in STAGES and two[1] in STAGES):
            continue
        out.append(
            f'<path d="M{x(one[2]):.1f} {y(*one[:2]) + BAR / 2} L{x(two[2]):.1f} {y(*two[:2]) + BAR / 2}" '
            'stroke="#c0392b" stroke-width="0.5" stroke-opacity="0.6" fill="none"/>'
        )
    for part in range(5):
        time = (end - begin) * part / 4
        out.append(f'<text x="{x(begin + time):.0f}" y="{height - 6}" text-anchor="middle">{time / 1000:.2f} ms</text>')
    return "\n".join([*out, "</svg>", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("timeline")
    parser.add_argument("svg")
    parser.add_argument("--from", dest="begin", type=float, metavar="MS")
    parser.add_argument("--length", type=float, metavar="MS")
    args = parser.parse_args()
    names, slices, arrows = read(args.timeline)
    Path(args.svg).write_text(draw(names, slices, arrows, *window(slices, args.begin, args.length)), encoding="utf-8")


if __name__ == "__main__":
    main()
