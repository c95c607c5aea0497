# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs as an SVG: for each target how many times as good libdat is on each generation of processors, on a
logarithmic axis, with a mark at what is needed, and beside that the figures themselves."""

import math
from html import escape

from report import figure, ratio
from targets import TARGETS

LEFT, WIDTH, WORDS, ROW, GAP, TOP = 330, 280, 500, 18, 4, 58
LOW, HIGH = 1 / 32, 32
TICKS = (1 / 16, 1 / 4, 1, 4, 16)
# By the place of the processors, for one run after the other.
COLOURS = (
    {"core": "#9dbad8", "near": "#3b6ea5", "far": "#1d3a5a", "any": "#3b6ea5"},
    {"core": "#e9c39b", "near": "#c77c2e", "far": "#7a4713", "any": "#c77c2e"},
    {"core": "#b5cfae", "near": "#5b8f4e", "far": "#2f5226", "any": "#5b8f4e"},
    {"core": "#cdb6dc", "near": "#7d55a0", "far": "#472a61", "any": "#7d55a0"},
    {"core": "#d6d3b0", "near": "#8f8a3c", "far": "#524f1c", "any": "#8f8a3c"},
)
PLACES = {"core": "one core", "near": "near", "far": "far"}


def x_of(value):
    """The place of a ratio on the axis."""
    share = math.log(min(max(value, LOW), HIGH) / LOW) / math.log(HIGH / LOW)
    return LEFT + share * WIDTH


def text(x, y, words, anchor="start", size=12, extra=""):
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}"{extra}>'
        f"{escape(words)}</text>"
    )


def axis(height):
    parts = []
    for value in TICKS:
        x = x_of(value)
        strong = value == 1
        colour, width = ("#333", 1.5) if strong else ("#ddd", 1)
        parts.append(
            f'<line x1="{x:.1f}" y1="{TOP - 8}" x2="{x:.1f}" y2="{height - 12}" '
            f'stroke="{colour}" stroke-width="{width}"/>'
        )
        label = f"1/{round(1 / value)}" if value < 1 else f"{value:g}"
        parts.append(text(x, TOP - 13, label, "middle", 10))
    return parts


def name_of(run):
    """The processors of a run: their maker, and their generation if that was noted."""
    return " ".join(filter(None, (run["maker"], run.get("generation"))))


def targets_of(runs):
    """What is measured and its unit, by target, in the order of the targets; in the words of the last run."""
    found = {}
    for run in sorted(runs, key=lambda run: run["date"]):
        for result in run["results"]:
            found[result["target"]] = (result["what"], result["unit"])
    order = [target.key for target in TARGETS]
    return dict(sorted(found.items(), key=lambda item: (
        order.index(item[0]) if item[0] in order else len(order))))


def versions(run):
    """Which programs were measured."""
    return ", ".join(f"{name} {version}" for name, version in run.get("versions", {}).items() if version)


def bars(runs):
    """A group of bars for each target: those of one run after the other."""
    y = TOP
    parts = []
    for key, (what, unit) in targets_of(runs).items():
        label = f"{key.split('.')[0]}: {what}"
        parts.append(text(LEFT - 8, y + 14, label, "end"))
        for run, colours in zip(runs, COLOURS):
            result = next((r for r in run["results"] if r["target"] == key), None)
            if result is None:
                continue
            drawn = [c for c in result["comparisons"] if "ratio" in c]
            for comparison in drawn:
                place = PLACES.get(comparison["place"])
                where = f"{name_of(run)}, {place}" if place else name_of(run)
                parts += bar(comparison, colours, y, f"{where}: {words_of(comparison, unit)}")
                y += ROW
            if not drawn:
                words = "open" if result["comparisons"] else "no figure"
                parts.append(text(LEFT + WIDTH + 8, y + 14, f"{name_of(run)}: {words}", size=11))
                y += ROW
        y += GAP
    return parts, y


def words_of(comparison, unit):
    """A comparison in words: the figure of libdat, the other and its figure, the ratio, what is needed."""
    c = comparison
    words = ""
    if "figure" in c:
        words = f"{figure(c['libdat'])} {unit}, {c['other']} {figure(c['figure'])} {unit}: "
    elif "other" in c:
        words = f"{c['other']}: "
    return f"{words}{ratio(c)} times, needed {c['needed']:.3g}: {c['verdict']}"


def bar(comparison, colours, y, words):
    a, b = sorted((x_of(1), x_of(comparison["ratio"])))
    mark = x_of(comparison["needed"])
    return [
        f'<rect x="{a:.1f}" y="{y + 3}" width="{max(b - a, 1):.1f}" height="{ROW - 6}" '
        f'fill="{colours[comparison["place"]]}"/>',
        f'<path d="M{mark:.1f} {y} v{ROW}" stroke="#b3261e" stroke-width="2"/>',
        text(LEFT + WIDTH + 8, y + 14, words, size=11),
    ]


def svg(runs):
    drawn, bottom = bars(runs)
    lines = sum(2 if "note" in run else 1 for run in runs)
    height, width = bottom + 20 + 18 * lines, LEFT + WIDTH + WORDS
    legend = []
    y = bottom + 14
    for run, colours in zip(runs, COLOURS):
        x = 12
        words = f"{run['processor']}, Linux {run['kernel']}, {run['date']}, {run['rounds']} rounds"
        words = ", ".join(filter(None, (words, versions(run))))
        for place, name in PLACES.items():
            legend.append(
                f'<rect x="{x}" y="{y}" width="11" height="11" fill="{colours[place]}"/>'
            )
            legend.append(text(x + 16, y + 10, f"{name_of(run)}, {name}", size=11))
            x += 150
        legend.append(text(x, y + 10, words, size=10, extra=' fill="#555"'))
        y += 18
        if "note" in run:
            legend.append(text(12 + 16, y + 10, f"{name_of(run)}: {run['note']}", size=10, extra=' fill="#555"'))
            y += 18
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif">',
        "<title>libdat against the best other program, or a limit of the machine</title>",
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        text(12, 20, "Times as good as the best other program, or a limit of the machine", size=14),
        text(12, 36, "a bar: how many times as good; the red mark: what is needed; in words: libdat, the other and its figure", size=10, extra=' fill="#555"'),
    ]
    return "\n".join(head + axis(bottom + 12) + drawn + legend + ["</svg>", ""])
