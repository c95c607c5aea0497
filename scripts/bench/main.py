# SPDX-License-Identifier: MIT OR Apache-2.0
"""Measures libdat and the others side by side and says which targets are reached.

Exit status: 0 if all that were measured are reached, 1 if one is missed or stays open, 2 for a
mistake in the command line."""

import argparse
import os
import sys
import tempfile
import time

import published
import report
from model import PLACES, Sample, judge, place_of
from programs import Context, Failed, probe
from targets import CONFIGURATION, TARGETS

# Fewer rounds are not published.
KEPT_ROUNDS = 5
# Load average above which figures say little.
BUSY = 0.7


class Progress:
    """A bar on a terminal, nothing elsewhere."""

    def __init__(self, total):
        self.total, self.done, self.start = total, 0, time.monotonic()
        self.shown = sys.stderr.isatty()

    def step(self, what):
        self.done += 1
        if not self.shown:
            return
        width = 20
        full = self.done * width // self.total
        spent = time.monotonic() - self.start
        left = spent / self.done * (self.total - self.done)
        bar = "#" * full + "." * (width - full)
        sys.stderr.write(f"\r[{bar}] {self.done}/{self.total}, {left:3.0f} s left  {what:.30}\033[K")
        sys.stderr.flush()

    def end(self):
        if self.shown:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()


def line_ns(context):
    try:
        return probe(context, "line", *context.cpus).median
    except Failed:
        return None


def take(context, target, source, number):
    """One sample; another one if the processors have moved meanwhile."""
    sample = take_once(context, target, source, number)
    if sample.place == "mixed":
        again = take_once(context, target, source, number)
        if again.figures is not None:
            return again
    return sample


def take_once(context, target, source, number):
    """One sample, with a look at the processors before and after."""
    before = line_ns(context)
    figures, error = None, None
    try:
        figures = source.run(context)
    except Failed as failure:
        error = str(failure)
    after = line_ns(context)
    place = place_of(before, after)
    return Sample(target.key, source.name, number, figures, place, (before, after), error)


def chosen(only):
    words = only.replace(",", " ").split()
    if not words:
        return TARGETS
    found = [t for t in TARGETS if any((t.key + ".").startswith(w.rstrip(".") + ".") for w in words)]
    if not found:
        keys = " ".join(t.key for t in TARGETS)
        sys.exit(f"bench: no target is called {only!r}; there are: {keys}")
    return found


def options():
    parser = argparse.ArgumentParser(prog="bench", description=__doc__.splitlines()[0])
    parser.add_argument("--tools", required=True, help="directory of dat-perf and bench-probe")
    parser.add_argument("--others", required=True, help="directory of our programs on UCX")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--limit", type=float, default=900, help="seconds of all rounds")
    parser.add_argument("--only", default="", help="targets, or the beginnings of their names")
    parser.add_argument("--json", required=True, help="file to write")
    parser.add_argument("--keep", action="store_true", help="write docs/bench and what is made of it")
    parser.add_argument("--congestion", default="", help="what the sockets of libdat are set to")
    given = parser.parse_args()
    if given.rounds < 1:
        parser.error("at least one round")
    return given


def processors():
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < 2:
        sys.exit("bench: two processors are needed")
    return usable[0], usable[1]


def measure(context, targets, given):
    """All samples, and how many rounds they are."""
    samples = []
    sources = sum(len(target.sources) for target in targets)
    progress = Progress(given.rounds * sources)
    start = time.monotonic()
    try:
        for number in range(given.rounds):
            spent = time.monotonic() - start
            if number and spent / number * (number + 1) > given.limit:
                progress.end()
                print(f"bench: {number} rounds have taken {spent:.0f} s; no more", file=sys.stderr)
                return samples, number
            for target in targets:
                for source in target.sources:
                    progress.step(f"{target.key}: {source.name}")
                    samples.append(take(context, target, source, number))
    except KeyboardInterrupt:
        progress.end()
        print("bench: interrupted; what has been measured so far:", file=sys.stderr)
        return samples, number
    progress.end()
    return samples, given.rounds


def all_reached(results):
    return all(result.verdict == "reached" for result in results)


def main():
    given = options()
    targets = chosen(given.only)
    start = time.monotonic()
    load = os.getloadavg()[0]
    if load > BUSY:
        print(f"bench: the machine is busy (load {load:.1f}); expect noise", file=sys.stderr)
    with tempfile.NamedTemporaryFile("w", prefix="bench-", suffix=".conf") as conf:
        congestion = f" congestion={given.congestion}" if given.congestion else ""
        conf.write(CONFIGURATION.format(cc=congestion))
        conf.flush()
        directories = (os.path.abspath(given.tools), os.path.abspath(given.others))
        context = Context(*directories, processors(), conf.name)
        samples, rounds = measure(context, targets, given)
    results = [judge(target, samples) for target in targets]
    places = [sample.place for sample in samples]
    counts = ", ".join(f"{places.count(p)} {p}" for p in (*PLACES, "mixed") if p in places)
    about = {
        "rounds": rounds,
        "congestion": given.congestion or "the system's",
        "cpus": context.cpus,
        "load_before": load,
        "seconds": round(time.monotonic() - start),
        "places": counts,
    }
    print(report.table(results))
    still_open = [c for r in results for c in r.comparisons if c.verdict == "open"]
    if any(c.unmet for c in still_open):
        print("open: not every other program has met the processors this way; more ROUNDS help")
    if any(c.absent for c in still_open):
        print("open: another program gave no figure, and might be the better one")
    print(
        f"\n{report.machine()['processor']}: {report.sum_of(results)}; {rounds} rounds in "
        f"{about['seconds']} s; samples: {counts}; load {load:.1f}; "
        f"congestion control: {about['congestion']}"
    )
    report.write_json(given.json, results, samples, about)
    if given.keep and rounds >= KEPT_ROUNDS:
        published.keep(published.record(results, rounds))
    return 0 if all_reached(results) else 1


if __name__ == "__main__":
    sys.exit(main())
