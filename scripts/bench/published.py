# SPDX-License-Identifier: MIT OR Apache-2.0
"""What is kept of a run: a file in docs/bench for each generation of processors, and the table and the
picture made of all of them."""

import contextlib
import json
import os
import time

import plot
from report import ROOT, counts, figure, machine, ratio

KEPT = os.path.join(ROOT, "docs", "bench")
TABLE = os.path.join(ROOT, "docs", "performance.md")
PICTURE = os.path.join(ROOT, "docs", "bench.svg")

HEAD = """\
# Performance

What `make bench` has measured last on each generation of processors. The programs run on the same two
processors, in turns; what counts is the median of all rounds, of the same statistic (median or mean of
a run) for libdat and for the other program. Only figures of the same placement are compared: the two
processors are threads of one core, near each other (one way of a cache line takes less than 110 ns) or
far. `make bench` writes this file anew, for the processor at hand.
"""


def rounded(value):
    return None if value is None else float(f"{value:.4g}")


def kept(comparison):
    c = comparison
    entry = {"place": c.place, "statistic": c.ours.statistic, "libdat": rounded(c.ours.value)}
    if c.other:
        entry |= {"other": c.other_name, "figure": rounded(c.other.value), "ratio": rounded(c.ratio)}
    return entry | {"needed": rounded(c.needed), "verdict": c.verdict}


def shown(result):
    """The comparisons of a result that say something. One without a figure of the other program, because the
    processors were not that far from each other when that ran, says nothing beside those that decide."""
    decided = result.verdict != "open"
    return [c for c in result.comparisons if c.other or not decided]


def record(results, rounds):
    """A run as it is kept."""
    about = machine()
    return {
        "format": 2,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "maker": about["maker"],
        "generation": about["generation"],
        "processor": about["processor"],
        "kernel": about["kernel"],
        "versions": about["versions"],
        "rounds": rounds,
        "results": [
            {
                "target": r.target.key,
                "what": r.target.label,
                "unit": r.target.unit,
                "comparisons": [kept(c) for c in shown(r)],
                "verdict": r.verdict,
            }
            for r in results
        ],
    }


def records(directory):
    """All that are kept, by maker and generation."""
    found = []
    for name in sorted(os.listdir(directory)):
        if name.endswith(".json"):
            with open(os.path.join(directory, name), encoding="utf-8") as file:
                found.append(json.load(file))
    return found


def cell(comparison):
    """A comparison in a few words: libdat, the other, how many times as good."""
    c = comparison
    words = [] if c["place"] == "any" else [f"{c['place']}:"]
    if "libdat" in c:
        words.append(figure(c["libdat"]))
    if "other" in c:
        words.append(f"({c['other']}" + (f" {figure(c['figure'])})" if "figure" in c else ")"))
    if "ratio" in c:
        words.append(f"{ratio(c)}x")
    if c["verdict"] != "reached":
        words.append(f"**{c['verdict']}**")
    return " ".join(words)


def table(kept_runs):
    """The table of all runs side by side."""
    lines = [HEAD]
    for run in kept_runs:
        versions = plot.versions(run)
        lines.append(
            f"- **{plot.name_of(run)}**: {run['processor']}, Linux {run['kernel']}, {run['date']}, "
            f"{run['rounds']} rounds"
            + (f", {versions}" if versions else "")
            + (f"; {run['note']}" if "note" in run else "")
            + "."
        )
    lines += ["", "A cell is the figure of libdat, that of the best other program or limit of the machine,"]
    lines += ["and how many times as good libdat is; more than what is needed unless it says missed.", ""]
    lines.append("| what | unit | " + " | ".join(map(plot.name_of, kept_runs)) + " |")
    lines.append("|---|---|" + "---|" * len(kept_runs))
    by_target = [{r["target"]: r for r in run["results"]} for run in kept_runs]
    for target, (what, unit) in plot.targets_of(kept_runs).items():
        cells = []
        for results in by_target:
            result = results.get(target)
            found = "<br>".join(cell(c) for c in result["comparisons"]) if result else ""
            cells.append(found or "-")
        lines.append(f"| {target.split('.')[0]}: {what} | {unit} | " + " | ".join(cells) + " |")
    lines.append("")
    for run in kept_runs:
        lines.append(f"- {plot.name_of(run)}: {counts([r['verdict'] for r in run['results']])}")
    return "\n".join(lines) + "\n"


def keep(run):
    """Keeps a run of all targets, and makes the table and the picture anew."""
    # A run of which only the maker was noted gives way to the first one on such a processor that says more.
    unnamed = os.path.join(KEPT, f"{run['maker'].lower()}.json")
    with contextlib.suppress(FileNotFoundError):
        with open(unnamed, encoding="utf-8") as file:
            same = json.load(file)["processor"] == run["processor"]
        if same:
            os.remove(unnamed)
    name = plot.name_of(run).lower().replace(" ", "-")
    with open(os.path.join(KEPT, f"{name}.json"), "w", encoding="utf-8") as file:
        json.dump(run, file, indent=1)
        file.write("\n")
    kept_runs = records(KEPT)
    with open(TABLE, "w", encoding="utf-8") as file:
        file.write(table(kept_runs))
    with open(PICTURE, "w", encoding="utf-8") as file:
        file.write(plot.svg(kept_runs))
