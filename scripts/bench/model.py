# SPDX-License-Identifier: MIT OR Apache-2.0
"""Targets, samples and verdicts: what is compared with what, without running anything."""

from dataclasses import dataclass, field
from statistics import median

# One way of a cache line between two processors, in nanoseconds, below which they are near.
NEAR_BELOW = 110.0

PLACES = ("near", "far")


@dataclass(frozen=True)
class Source:
    """Where a figure comes from."""

    name: str
    # run(context) gives the figure in the target's unit; see programs.py.
    run: object = field(compare=False, repr=False)
    # Whether the verdict depends on it, or it is shown only.
    decides: bool = True
    # Its figures are means, which a disturbance spoils: its best one counts. Of figures that are
    # medians themselves the median counts.
    of_means: bool = False


@dataclass(frozen=True)
class Target:
    """A line of the targets."""

    key: str
    label: str
    unit: str
    ours: Source
    others: tuple
    # The ratio to the best other one that is to be reached.
    needed: dict
    # The absolute figures that the targets name, for the reader.
    aim: dict
    one_processor: bool = False

    @property
    def sources(self):
        return (self.ours, *self.others)

    @property
    def higher_is_better(self):
        return self.unit != "us"


@dataclass
class Sample:
    """A figure, or why there is none, and how near the processors were meanwhile."""

    target: str
    source: str
    round: int
    value: float | None
    place: str
    line_ns: tuple = ()
    error: str | None = None


def place_of(before, after):
    """How near the processors were, if that has not changed."""
    if before is None or after is None:
        return "unknown"
    if before < NEAR_BELOW and after < NEAR_BELOW:
        return "near"
    if before >= NEAR_BELOW and after >= NEAR_BELOW:
        return "far"
    return "mixed"


def best(values, higher):
    return max(values) if higher else min(values)


def ratio(ours, other, higher):
    """How many times as good we are."""
    if higher:
        return ours / other if other else float("inf")
    return other / ours if ours else float("inf")


@dataclass
class Summary:
    """The figures of one source in one placement."""

    median: float
    best: float
    # The one that counts.
    value: float
    count: int
    by_round: dict


def summarise(source, samples, higher):
    mine = [s for s in samples if s.source == source.name and s.value is not None]
    if not mine:
        return None
    values = [s.value for s in mine]
    middle, top = median(values), best(values, higher)
    by_round = {s.round: s.value for s in mine}
    return Summary(middle, top, top if source.of_means else middle, len(values), by_round)


@dataclass
class Comparison:
    """Us and the best other one in one placement."""

    place: str
    ours: Summary
    other_name: str | None
    other: Summary | None
    ratio: float | None
    spread: tuple | None
    needed: float
    # Others that decide and have figures, but none in this placement.
    unmet: tuple
    # Others that decide and have no figure at all.
    absent: tuple

    @property
    def verdict(self):
        if self.ratio is None:
            return "open"
        if self.ratio < self.needed:
            # One that is missing could only be better than those that are there.
            return "missed"
        return "open" if self.unmet or self.absent else "reached"


@dataclass
class Result:
    """What is said of a target."""

    target: Target
    comparisons: list
    verdict: str
    note: str


def compare(target, place, samples, everywhere):
    """Compares in one placement; None if we have no figure in it."""
    higher = target.higher_is_better
    ours = summarise(target.ours, samples, higher)
    if ours is None:
        return None
    found, unmet, absent = [], [], []
    for source in target.others:
        if not source.decides:
            continue
        summary = summarise(source, samples, higher)
        if summary is not None:
            found.append((source.name, summary))
        elif summarise(source, everywhere, higher) is not None:
            unmet.append(source.name)
        else:
            absent.append(source.name)
    needed = target.needed["near" if place != "far" else "far"]
    missing = (tuple(unmet), tuple(absent))
    if not found:
        return Comparison(place, ours, None, None, None, None, needed, *missing)
    pick = max if higher else min
    name, other = pick(found, key=lambda entry: entry[1].value)
    pairs = [
        ratio(ours.by_round[r], other.by_round[r], higher)
        for r in ours.by_round
        if r in other.by_round
    ]
    times = ratio(ours.value, other.value, higher)
    spread = (min(pairs), max(pairs)) if pairs else None
    return Comparison(place, ours, name, other, times, spread, needed, *missing)


def judge(target, samples):
    """The verdict: like is compared with like, and every placement that was met counts. Without a
    figure of ours a target is missed. It stays open if another one that decides, and might have
    been better than us, gave none."""
    mine = [s for s in samples if s.target == target.key]
    comparisons = []
    if not target.one_processor:
        for place in PLACES:
            here = [s for s in mine if s.place == place]
            comparison = compare(target, place, here, mine)
            if comparison is not None:
                comparisons.append(comparison)
    if all(c.verdict == "open" and (c.unmet or c.ratio is None) for c in comparisons):
        # No two samples alike: then all of them, which is said.
        comparison = compare(target, "any", mine, mine)
        comparisons = [comparison] if comparison else []
    note = "; ".join(said for source in target.sources for said in failures(source, mine))
    verdicts = {c.verdict for c in comparisons}
    if not comparisons or "missed" in verdicts:
        verdict = "missed"
    elif "reached" in verdicts and not any(c.absent for c in comparisons):
        verdict = "reached"
    else:
        verdict = "open"
    return Result(target, comparisons, verdict, note)


def failures(source, samples):
    """What is to be said of a source that has failed, once or always."""
    mine = [s for s in samples if s.source == source.name]
    errors = sorted({s.error for s in mine if s.error})
    if any(s.value is not None for s in mine):
        return [f"{source.name}: {error}" for error in errors]
    why = f": {', '.join(errors)}" if errors else ""
    return [f"{source.name} gave no figure{why}"]
