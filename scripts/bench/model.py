# SPDX-License-Identifier: MIT OR Apache-2.0
"""Targets, samples and verdicts: what is compared with what, without running anything."""

from dataclasses import dataclass, field
from statistics import median

# One way of a cache line between two processors, in nanoseconds, below which they are threads of one
# core, or near each other.
CORE_BELOW = 20.0
NEAR_BELOW = 110.0

PLACES = ("core", "near", "far")
# A placement that fewer rounds have met, of those there were, is not judged.
LEAST_ROUNDS = 3
# A program says the median of what it has timed, or the mean, or both. The median is less disturbed;
# the mean is compared where one of two programs has nothing else.
STATISTICS = ("median", "mean")


@dataclass(frozen=True)
class Figures:
    """What one run of a program says, in the target's unit."""

    median: float | None = None
    mean: float | None = None

    def scaled(self, factor):
        return Figures(*(None if v is None else v * factor for v in (self.median, self.mean)))


@dataclass(frozen=True)
class Source:
    """Where a figure comes from."""

    name: str
    # run(context) gives Figures; see programs.py.
    run: object = field(compare=False, repr=False)
    # Whether the verdict depends on it, or it is shown only.
    decides: bool = True


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
    """The figures of one run, or why there are none, and how near the processors were meanwhile."""

    target: str
    source: str
    round: int
    figures: Figures | None
    place: str
    line_ns: tuple = ()
    error: str | None = None


def place_of(before, after):
    """How near the processors were, if that has not changed."""
    if before is None or after is None:
        return "unknown"
    first, second = (
        "core" if line < CORE_BELOW else "near" if line < NEAR_BELOW else "far"
        for line in (before, after)
    )
    return first if first == second else "mixed"


def ratio(ours, other, higher):
    """How many times as good we are."""
    if higher:
        return ours / other if other else float("inf")
    return other / ours if ours else float("inf")


@dataclass
class Summary:
    """The figures of one source in one placement: the median of all rounds is what counts."""

    statistic: str
    value: float
    best: float
    count: int
    by_round: dict


def summarise(source, samples, higher, statistic):
    """None if no run has given that statistic."""
    mine = [s for s in samples if s.source == source.name and s.figures is not None]
    by_round = {s.round: getattr(s.figures, statistic) for s in mine}
    by_round = {number: value for number, value in by_round.items() if value is not None}
    if not by_round:
        return None
    values = list(by_round.values())
    best = max(values) if higher else min(values)
    return Summary(statistic, median(values), best, len(values), by_round)


@dataclass
class Comparison:
    """Us and the best other one in one placement, by the same statistic."""

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


def pair_of(target, source, samples):
    """Our summary and that of a source, by the same statistic; None without two such figures."""
    higher = target.higher_is_better
    for statistic in STATISTICS:
        pair = [summarise(s, samples, higher, statistic) for s in (target.ours, source)]
        if None not in pair:
            return pair
    return None


def compare(target, place, samples, everywhere):
    """Compares in one placement; None if we have no figure in it."""
    higher = target.higher_is_better
    summaries = (summarise(target.ours, samples, higher, statistic) for statistic in STATISTICS)
    alone = next((summary for summary in summaries if summary is not None), None)
    if alone is None:
        return None
    found, unmet, absent = [], [], []
    for source in target.others:
        if not source.decides:
            continue
        pair = pair_of(target, source, samples)
        if pair is not None:
            times = ratio(pair[0].value, pair[1].value, higher)
            found.append((times, source.name, *pair))
        elif pair_of(target, source, everywhere) is not None:
            unmet.append(source.name)
        else:
            absent.append(source.name)
    needed = target.needed["far" if place == "far" else "near"]
    missing = (tuple(unmet), tuple(absent))
    if not found:
        return Comparison(place, alone, None, None, None, None, needed, *missing)
    times, name, mine, other = min(found, key=lambda entry: entry[0])
    pairs = [
        ratio(mine.by_round[r], other.by_round[r], higher)
        for r in mine.by_round
        if r in other.by_round
    ]
    spread = (min(pairs), max(pairs)) if pairs else None
    return Comparison(place, mine, name, other, times, spread, needed, *missing)


def judge(target, samples):
    """The verdict: only samples of one placement are compared, and every placement that was met often
    counts. Without a figure of ours a target is missed. It stays open if another one that decides, and
    might have been better than us, gave none, or none in a placement of ours."""
    mine = [s for s in samples if s.target == target.key]
    comparisons = []
    ours = [s for s in mine if s.source == target.ours.name and s.figures is not None]
    rounds = len({s.round for s in ours})
    # On one processor there is no distance.
    for place in ("any",) if target.one_processor else PLACES:
        here = mine if target.one_processor else [s for s in mine if s.place == place]
        comparison = compare(target, place, here, mine)
        if comparison is not None and comparison.ours.count >= min(rounds, LEAST_ROUNDS):
            comparisons.append(comparison)
    note = "; ".join(said for source in target.sources for said in failures(source, mine))
    verdicts = {c.verdict for c in comparisons}
    if not ours or "missed" in verdicts:
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
    if any(s.figures is not None for s in mine):
        return [f"{source.name}: {error}" for error in errors]
    why = f": {', '.join(errors)}" if errors else ""
    return [f"{source.name} gave no figure{why}"]
