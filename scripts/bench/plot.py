# SPDX-License-Identifier: MIT OR Apache-2.0
"""The results as an SVG: for each target how many times as good libdat is, on a logarithmic
axis, with a mark at what is needed."""

import math
from html import escape

LEFT, WIDTH, ROW, TOP = 330, 420, 20, 58
LOW, HIGH = 1 / 64, 64
COLOURS = {"near": "#3b6ea5", "far": "#c77c2e", "any": "#6b6b6b"}


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
    value = LOW
    while value <= HIGH:
        x = x_of(value)
        strong = value == 1
        colour, width = ("#333", 1.5) if strong else ("#ddd", 1)
        parts.append(
            f'<line x1="{x:.1f}" y1="{TOP - 8}" x2="{x:.1f}" y2="{height - 12}" '
            f'stroke="{colour}" stroke-width="{width}"/>'
        )
        label = f"1/{round(1 / value)}" if value < 1 else f"{value:g}"
        parts.append(text(x, TOP - 13, label, "middle", 10))
        value *= 4
    return parts


def bars(results):
    y = TOP
    parts = []
    for result in results:
        drawn = [c for c in result.comparisons if c.verdict != "open"]
        height = ROW * max(1, len(drawn))
        group = result.target.key.split(".")[0]
        label = f"{group}: {result.target.label}"
        parts.append(text(LEFT - 8, y + 14, label, "end"))
        for comparison in drawn:
            a, b = sorted((x_of(1), x_of(comparison.ratio)))
            colour = COLOURS[comparison.place]
            parts.append(
                f'<rect x="{a:.1f}" y="{y + 3}" width="{max(b - a, 1):.1f}" height="{ROW - 6}" '
                f'fill="{colour}"/>'
            )
            mark = x_of(comparison.needed)
            parts.append(
                f'<path d="M{mark:.1f} {y} v{ROW}" stroke="#b3261e" stroke-width="2"/>'
            )
            words = f"{comparison.ratio:.2g}, {comparison.verdict}"
            parts.append(text(LEFT + WIDTH + 8, y + 14, words, size=11))
            y += ROW
        if not drawn:
            words = "open" if result.comparisons else "no figure"
            parts.append(text(LEFT + WIDTH + 8, y + 14, words, size=11))
            y += height
    return parts, y


def svg(results, subtitle):
    drawn, bottom = bars(results)
    height, width = bottom + 34, LEFT + WIDTH + 110
    legend = []
    x = 12
    for place, words in (("near", "cores near"), ("far", "cores far"), ("any", "either")):
        legend.append(
            f'<rect x="{x}" y="{bottom + 14}" width="11" height="11" fill="{COLOURS[place]}"/>'
        )
        legend.append(text(x + 16, bottom + 24, words, size=11))
        x += 100
    legend.append(
        f'<path d="M{x + 4} {bottom + 12} v14" stroke="#b3261e" stroke-width="2"/>'
    )
    legend.append(text(x + 12, bottom + 24, "needed", size=11))
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif">',
        "<title>libdat against the best other program, or a limit of the machine</title>",
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        text(12, 20, "Times as good as the best other program, or a limit of the machine", size=14),
        text(12, 36, subtitle, size=10, extra=' fill="#555"'),
    ]
    return "\n".join(head + axis(bottom + 12) + drawn + legend + ["</svg>", ""])
