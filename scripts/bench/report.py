# SPDX-License-Identifier: MIT OR Apache-2.0
"""The results for people, a line for each target, and for programs."""

import dataclasses
import json
import os
import platform
import re
import shutil
import subprocess
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def figure(value):
    """A number with three digits that say something."""
    if value is None:
        return "-"
    if value >= 100:
        return f"{value:.0f}"
    if value >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def ratio(kept):
    """How many times as good libdat is in a comparison that is kept, and not so rounded that what was
    missed looks reached."""
    value, needed = kept["ratio"], kept["needed"]
    # Of what was kept with few digits there are no more.
    for write in (figure, "{:.4g}".format) if "figure" in kept else ("{:g}".format,):
        words, limit = write(value), write(needed)
        if kept["verdict"] != "missed" or float(words) < float(limit):
            return words
    return f"less than {limit}"


def aim(target):
    near, far = target.aim.get("near"), target.aim.get("far")
    if near is None:
        return "-"
    return figure(near) if near == far else f"{figure(near)}/{figure(far)}"


def lines_of(result):
    """One line for each placement that was met."""
    target = result.target
    rows = []
    for c in result.comparisons or [None]:
        row = [target.key, target.label, target.unit, aim(target)]
        if c is None:
            rows.append(row + ["-", "-", "-", "-", "-", "-", result.verdict])
            continue
        place = "-" if target.one_processor else c.place
        mine = f"{figure(c.ours.value)} ({figure(c.ours.best)})"
        other = "none"
        if c.other:
            other = f"{c.other_name} {figure(c.other.value)} ({figure(c.other.best)})"
        if c.ratio is None:
            times = "-"
        else:
            spread = f" [{figure(c.spread[0])}-{figure(c.spread[1])}]" if c.spread else ""
            times = f"{figure(c.ratio)}{spread}"
        rows.append(row + [place, mine, other, times, figure(c.needed), c.verdict])
    for row in rows[1:]:
        row[0] = row[1] = row[2] = row[3] = ""
    return rows


HEADS = (
    "target", "what", "unit", "aim", "cores", "libdat (best round)", "best other, or limit",
    "times as good", "needed", "",
)


def table(results):
    rows = [list(HEADS)] + [row for result in results for row in lines_of(result)]
    # A missing placement makes a row shorter.
    width = max(len(row) for row in rows)
    for row in rows:
        row[-1:-1] = [""] * (width - len(row))
    widths = [max(len(row[i]) for row in rows) for i in range(width)]
    text = [
        "  ".join(cell.ljust(size) for cell, size in zip(row, widths)).rstrip() for row in rows
    ]
    notes = [f"{r.target.key}: {r.note}" for r in results if r.note]
    return "\n".join(text + notes)


def sum_of(results):
    """How many targets have which verdict."""
    return counts([result.verdict for result in results])


def counts(verdicts):
    """The same of verdicts by their names."""
    each = ", ".join(f"{verdicts.count(v)} {v}" for v in ("reached", "missed", "open"))
    return f"{len(verdicts)} targets: {each}"


# The makers of processors by the name in /proc/cpuinfo.
MAKERS = {"GenuineIntel": "Intel", "AuthenticAMD": "AMD"}
# What the generations of their processors are called, by family and models.
GENERATIONS = (
    ("AMD", 25, (0x10, 0x1F), "Zen 4"),
    ("AMD", 25, (0x60, 0xAF), "Zen 4"),
    ("AMD", 25, (0x00, 0x5F), "Zen 3"),
    ("AMD", 26, (0x00, 0xFF), "Zen 5"),
    ("Intel", 6, (0x6A, 0x6C), "Ice Lake"),
    ("Intel", 6, (0x8F, 0x8F), "Sapphire Rapids"),
    ("Intel", 6, (0xAD, 0xAE), "Granite Rapids"),
    ("Intel", 6, (0xCF, 0xCF), "Emerald Rapids"),
)


def generation(maker, family, model):
    """What the generation of a processor is called; its numbers if that is not known."""
    for its_maker, its_family, (first, last), name in GENERATIONS:
        if (maker, family) == (its_maker, its_family) and first <= model <= last:
            return name
    return f"family {family} model {model}"


def machine():
    """What the figures depend on."""
    known = {}
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as info:
            for line in info:
                name, _, value = line.partition(":")
                known.setdefault(name.strip(), value.strip())
    except OSError:
        pass
    maker = MAKERS.get(known.get("vendor_id"), "other")
    numbers = [known.get(name, "") for name in ("cpu family", "model")]
    known_numbers = all(number.isdecimal() for number in numbers)
    return {
        "maker": maker,
        "generation": generation(maker, *map(int, numbers)) if known_numbers else "",
        "processor": known.get("model name", ""),
        "kernel": platform.release().split("-")[0],
        "versions": versions(),
    }


def versions():
    with open(os.path.join(ROOT, "Cargo.toml"), encoding="utf-8") as file:
        found = {"libdat": re.search(r'^version = "(.*)"$', file.read(), re.MULTILINE)[1]}
    if shutil.which("dpkg-query"):
        for package in ("ucx-utils", "libfabric-bin"):
            done = subprocess.run(
                ["dpkg-query", "-W", "-f=${Version}", package],
                capture_output=True,
                text=True,
                check=False,
            )
            found[package] = done.stdout or None
    return found


def as_json(results, samples, about):
    return {
        "format": 2,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine(),
        "about": about,
        "results": [
            {
                "target": r.target.key,
                "what": r.target.label,
                "unit": r.target.unit,
                "aim": r.target.aim,
                "verdict": r.verdict,
                "note": r.note,
                "comparisons": [
                    dict(dataclasses.asdict(c), verdict=c.verdict) for c in r.comparisons
                ],
            }
            for r in results
        ],
        "samples": [dataclasses.asdict(s) for s in samples],
    }


def write_json(path, *arguments):
    with open(path, "w", encoding="utf-8") as file:
        json.dump(as_json(*arguments), file, indent=1)
        file.write("\n")
