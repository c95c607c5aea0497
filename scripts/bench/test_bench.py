# SPDX-License-Identifier: MIT OR Apache-2.0
"""Tests of what needs no other program: python3 -m unittest discover scripts/bench."""

import contextlib
import io
import json
import os
import tempfile
import unittest
import unittest.mock
import xml.etree.ElementTree as xml

import crowd
import main
import plot
import published
import report
from model import Figures, Sample, Source, Target, judge, place_of, ratio
from programs import Failed, dat_figures, parse_dat, parse_fi, parse_ucx, ucx_figures
from targets import TARGETS

UCX = """\
iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr
100000,0.470,7.087,11.376,1.08,0.67,141113,87908
"""
FI = """\
bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec
64      5k      =5k      625k        0.00s    202.15       0.32       3.16
"""
DAT = {"test": "latency", "size": 4096, "latency_us": {"p50": 0.5, "mean": 0.8}}


class Reading(unittest.TestCase):
    def test_ucx(self):
        row = parse_ucx("+--- a box\n" + UCX)
        self.assertEqual(ucx_figures(row, "us", 8), Figures(0.470, 11.376))
        self.assertEqual(ucx_figures(row, "us", 8, trips=2), Figures(0.940, 22.752))
        self.assertEqual(ucx_figures(row, "M/s", 8), Figures(mean=0.087908))
        self.assertAlmostEqual(ucx_figures(row, "GB/s", 1000).mean, 0.087908)
        self.assertAlmostEqual(ucx_figures(row, "GB/s", 940, trips=2).median, 1.0)
        older = {name: value for name, value in row.items() if "percentile" not in name}
        self.assertEqual(ucx_figures(older, "us", 8), Figures(mean=11.376))

    def test_fabric(self):
        self.assertEqual(parse_fi(FI), Figures(mean=0.32))

    def test_dat(self):
        row = parse_dat(json.dumps({"results": [DAT]}))
        self.assertEqual(dat_figures(row, "us"), Figures(0.5, 0.8))
        self.assertEqual(dat_figures(row, "us").scaled(2), Figures(1.0, 1.6))
        self.assertEqual(dat_figures(row, "GB/s"), Figures(8.192, 5.12))
        stream = {"test": "rate", "bytes_per_second": 8e9, "messages_per_second": 1e9}
        self.assertEqual(dat_figures(stream, "GB/s"), Figures(mean=8))
        self.assertEqual(dat_figures(stream, "M/s"), Figures(mean=1000))
        self.assertEqual(dat_figures(stream, "us").scaled(2), Figures(mean=0.002))

    def test_what_is_no_output(self):
        for parse in (parse_ucx, parse_fi, parse_dat):
            for text in ("", "nothing\n", UCX.splitlines()[0], FI.splitlines()[0], "{}", "[1]"):
                with self.assertRaises(Failed):
                    parse(text)
        with self.assertRaises(Failed):
            parse_ucx(UCX.replace("0.470", "x"))


class Crowd(unittest.TestCase):
    def test_memory_of_a_process(self):
        status = ["Name:\tx\n", "RssAnon:\t    1024 kB\n", "RssFile:\t 9 kB\n", "RssShmem:\t 512 kB\n"]
        self.assertEqual(crowd.resident(status), 1.5)

    def test_all_at_once_or_the_failure_of_one(self):
        self.assertEqual(crowd.at_once(3, lambda number: number), [0, 1, 2])

        def fails(number):
            if number == 1:
                raise Failed("why")

        with self.assertRaisesRegex(Failed, "why"):
            crowd.at_once(3, fails)

    def test_each_path_has_an_entry(self):
        lines = crowd.configuration().splitlines()
        self.assertEqual([line.split()[0] for line in lines], list(crowd.PATHS))

    def test_a_table_counts_what_failed(self):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            table = crowd.Table("title", "path", "median")
            table.row("shm", 0.25)
            table.failure("tcp", why="no word")
            self.assertEqual(table.end(), 1)
        title, heads, row, failure, _ = out.getvalue().splitlines()
        self.assertEqual((title, heads.split(), row.split()), ("title", ["path", "median"], ["shm", "0.250"]))
        self.assertIn("failed: no word", failure)


def target(unit="us", others=("peer",), needed=1.0, **more):
    return Target(
        "shm.x",
        "something",
        unit,
        Source("libdat", None),
        tuple(Source(name, None) for name in others),
        {"near": needed, "far": needed},
        {},
        **more,
    )


def samples(source, values, place="near"):
    """Runs whose median and mean are the same."""
    given = enumerate(values)
    return [Sample("shm.x", source, n, Figures(value, value), place) for n, value in given]


def means(source, values):
    return [Sample("shm.x", source, n, Figures(mean=v), "near") for n, v in enumerate(values)]


def failed(source, error=None):
    return [Sample("shm.x", source, 9, None, "near", (), error)]


class Verdicts(unittest.TestCase):
    def test_places(self):
        self.assertEqual(place_of(8, 9), "core")
        self.assertEqual(place_of(30, 60), "near")
        self.assertEqual(place_of(200, 260), "far")
        self.assertEqual(place_of(8, 60), "mixed")
        self.assertEqual(place_of(30, 260), "mixed")
        self.assertEqual(place_of(None, 30), "unknown")

    def test_ratios(self):
        self.assertEqual(ratio(2, 4, higher=False), 2)
        self.assertEqual(ratio(2, 4, higher=True), 0.5)

    def test_like_is_compared_with_like(self):
        taken = samples("libdat", [1, 1, 9]) + samples("libdat", [4] * 3, "far")
        taken += samples("peer", [2, 2, 2]) + samples("peer", [2], "far")
        result = judge(target(), taken)
        self.assertEqual([c.place for c in result.comparisons], ["near", "far"])
        self.assertEqual([c.ratio for c in result.comparisons], [2, 0.5])
        self.assertEqual([c.verdict for c in result.comparisons], ["reached", "missed"])
        self.assertEqual(result.verdict, "missed")
        self.assertEqual(judge(target(needed=0.5), taken).verdict, "reached")

    def test_only_a_placement_is_compared(self):
        taken = samples("libdat", [1], "core") + samples("libdat", [1])
        taken += samples("peer", [3], "far") + samples("peer", [3], "mixed")
        result = judge(target(), taken)
        self.assertEqual([(c.place, c.ratio) for c in result.comparisons],
                         [("core", None), ("near", None)])
        self.assertEqual(result.verdict, "open")
        self.assertEqual(judge(target(), samples("libdat", [1], "mixed")).verdict, "open")

    def test_a_placement_that_was_hardly_met_does_not_count(self):
        taken = samples("libdat", [1] * 5) + samples("peer", [2] * 5)
        twice = [Sample("shm.x", name, 5 + n, Figures(value, value), "far")
                 for name, value in (("libdat", 9), ("peer", 2)) for n in range(2)]
        result = judge(target(), taken + twice)
        self.assertEqual([c.place for c in result.comparisons], ["near"])
        third = [Sample("shm.x", "libdat", 7, Figures(9, 9), "far")]
        result = judge(target(), taken + twice + third)
        self.assertEqual((len(result.comparisons), result.verdict), (2, "missed"))

    def test_on_one_processor_there_is_no_distance(self):
        taken = samples("libdat", [1], "near") + samples("peer", [3], "far")
        (only,) = judge(target(one_processor=True), taken).comparisons
        self.assertEqual((only.place, only.ratio, only.verdict), ("any", 3, "reached"))

    def test_a_placement_without_the_best_other_one_is_open(self):
        taken = samples("libdat", [4]) + samples("a", [2]) + samples("b", [9])
        taken += samples("libdat", [4], "far") + samples("b", [9], "far")
        two = target(others=("a", "b"), needed=0.5)
        result = judge(two, taken)
        self.assertEqual([c.verdict for c in result.comparisons], ["reached", "open"])
        self.assertEqual(result.verdict, "reached")
        worse = judge(target(others=("a", "b"), needed=3), taken).comparisons
        self.assertEqual([c.verdict for c in worse], ["missed", "missed"])

    def test_the_best_other_one_counts(self):
        taken = samples("libdat", [10]) + samples("a", [5]) + samples("b", [8])
        higher = judge(target("GB/s", ("a", "b")), taken).comparisons[0]
        self.assertEqual((higher.other_name, higher.ratio), ("b", 1.25))
        lower = judge(target("us", ("a", "b")), taken).comparisons[0]
        self.assertEqual((lower.other_name, lower.ratio), ("a", 0.5))

    def test_the_median_of_the_rounds_counts(self):
        taken = samples("libdat", [2, 2, 2]) + samples("peer", [50, 4, 90])
        (only,) = judge(target(), taken).comparisons
        self.assertEqual((only.ratio, only.other.best), (25, 4))

    def test_the_same_statistic_is_compared(self):
        mine = [Sample("shm.x", "libdat", n, Figures(1, 10), "near") for n in range(3)]
        (only,) = judge(target(), mine + samples("peer", [4])).comparisons
        self.assertEqual((only.ours.statistic, only.other.statistic, only.ratio),
                         ("median", "median", 4))
        (only,) = judge(target(), mine + means("peer", [4])).comparisons
        self.assertEqual((only.ours.statistic, only.other.statistic, only.ratio),
                         ("mean", "mean", 0.4))
        # The one that is the better of two, each by its own statistic.
        both = mine + samples("a", [3]) + means("b", [20])
        (only,) = judge(target(others=("a", "b")), both).comparisons
        self.assertEqual((only.other_name, only.ratio), ("b", 2))

    def test_what_of_ours_failed_is_missed_and_said(self):
        result = judge(target(), failed("libdat", "no connection") + samples("peer", [1]))
        said = "libdat gave no figure: no connection"
        self.assertEqual((result.verdict, result.note), ("missed", said))
        self.assertEqual(judge(target(), failed("libdat") + failed("peer")).verdict, "missed")

    def test_a_target_whose_other_program_did_not_run_is_open(self):
        result = judge(target(), samples("libdat", [1]) + failed("peer", "is not installed"))
        said = "peer gave no figure: is not installed"
        self.assertEqual((result.verdict, result.note), ("open", said))
        # Nobody has started it.
        result = judge(target(), samples("libdat", [1]))
        self.assertEqual((result.verdict, result.note), ("open", "peer gave no figure"))
        alone = target(one_processor=True)
        self.assertEqual(judge(alone, samples("libdat", [1]) + failed("peer")).verdict, "open")

    def test_an_absent_one_may_be_the_best(self):
        two = target(others=("a", "b"))
        better = samples("libdat", [1]) + samples("a", [2]) + failed("b", "no server")
        result = judge(two, better)
        self.assertEqual((result.verdict, result.note), ("open", "b gave no figure: no server"))
        self.assertEqual([(c.place, c.verdict) for c in result.comparisons], [("near", "open")])
        # Whatever the absent one does, this is not the best.
        worse = samples("libdat", [4]) + samples("a", [2]) + failed("b", "no server")
        self.assertEqual(judge(two, worse).verdict, "missed")

    def test_an_absent_one_that_does_not_decide_is_only_said(self):
        shown = Source("shown", None, decides=False)
        plain = target()
        both = Target(**{**plain.__dict__, "others": (*plain.others, shown)})
        taken = samples("libdat", [1]) + samples("peer", [2]) + failed("shown", "no server")
        result = judge(both, taken)
        said = "shown gave no figure: no server"
        self.assertEqual((result.verdict, result.note), ("reached", said))

    def test_one_that_failed_once_still_decides(self):
        taken = samples("libdat", [1]) + samples("peer", [2]) + failed("peer", "no server")
        result = judge(target(), taken)
        self.assertEqual((result.verdict, result.note), ("reached", "peer: no server"))

    def test_the_sum_counts_every_verdict(self):
        results = [
            judge(target(), samples("libdat", [1]) + samples("peer", [2])),
            judge(target(), samples("libdat", [3]) + samples("peer", [2])),
            judge(target(), samples("libdat", [1])),
            judge(target(), samples("libdat", [1])),
        ]
        self.assertEqual(report.sum_of(results), "4 targets: 1 reached, 1 missed, 2 open")
        self.assertFalse(main.all_reached(results))
        self.assertTrue(main.all_reached(results[:1]))


class Output(unittest.TestCase):
    def results(self):
        taken = samples("libdat", [1, 1.2]) + samples("libdat", [400, 400], "far")
        return [judge(target(), taken + samples("peer", [2, 2]) + samples("peer", [5], "far"))]

    def test_table(self):
        lines = report.table(self.results()).splitlines()
        self.assertEqual(len(lines), 3)
        self.assertIn("1.10 (1.00)", lines[1])
        self.assertTrue(lines[1].endswith("reached"), lines[1])
        self.assertTrue(lines[2].endswith("missed"), lines[2])
        nothing = judge(target(), [])
        self.assertIn("missed", report.table([nothing]))
        alone = judge(target(), samples("libdat", [1]) + failed("peer", "no server"))
        text = report.table([alone])
        self.assertTrue(text.splitlines()[1].endswith("open"), text)
        self.assertIn("peer gave no figure: no server", text)

    def test_figures(self):
        self.assertEqual([report.figure(v) for v in (0.0304, 1.5, 12.34, 250.4, None)],
                         ["0.030", "1.50", "12.3", "250", "-"])

    def test_json(self):
        taken = samples("libdat", [1])
        text = json.dumps(report.as_json(self.results(), taken, {"rounds": 1}))
        self.assertEqual(json.loads(text)["results"][0]["verdict"], "missed")

    def kept(self):
        nothing = judge(target(), [])
        alone = judge(target(), samples("libdat", [1]))
        return published.record(self.results() + [nothing, alone], 7)

    def test_what_is_kept(self):
        run = json.loads(json.dumps(self.kept()))
        near, far = run["results"][0]["comparisons"]
        self.assertEqual((near["libdat"], near["figure"], near["other"]), (1.1, 2, "peer"))
        self.assertEqual((near["verdict"], far["verdict"], far["ratio"]), ("reached", "missed", 0.0125))
        self.assertNotIn("ratio", run["results"][2]["comparisons"][0])

    def test_what_compares_with_nothing_is_not_kept_beside_what_decides(self):
        taken = samples("libdat", [1]) + samples("peer", [2]) + samples("libdat", [1], "far")
        result = judge(target(), taken)
        self.assertEqual([c.verdict for c in result.comparisons], ["reached", "open"])
        (run,) = published.record([result], 7)["results"]
        self.assertEqual([c["verdict"] for c in run["comparisons"]], ["reached"])

    def test_the_runs_stand_side_by_side(self):
        here, there = self.kept(), self.kept()
        here["maker"], there["maker"] = "A", "B"
        here["generation"] = there["generation"] = ""
        there["results"] = there["results"][:1]
        there["results"][0]["target"] = "tcp.y"
        rows = published.table([here, there]).splitlines()
        self.assertIn("| what | unit | A | B |", rows)
        (shm,) = [row for row in rows if row.startswith("| shm: ")]
        (tcp,) = [row for row in rows if row.startswith("| tcp: ")]
        self.assertTrue(shm.endswith(" | - |"), shm)
        self.assertIn("| - | near: 1.10 (peer 2.00) 1.82x<br>far: 400 (peer 5.00) 0.013x **missed**", tcp)

    def test_what_is_published_is_of_what_is_kept(self):
        runs = published.records(published.KEPT)
        self.assertTrue(runs)
        for path, made in ((published.TABLE, published.table(runs)),
                           (published.PICTURE, plot.svg(runs))):
            with open(path, encoding="utf-8") as file:
                self.assertEqual(file.read(), made, path)

    def test_a_run_takes_the_place_of_the_one_before(self):
        with tempfile.TemporaryDirectory() as kept:
            made = {"KEPT": kept, "TABLE": kept + "/table", "PICTURE": kept + "/picture"}
            with unittest.mock.patch.multiple(published, **made):
                run = self.kept() | {"maker": "A"}
                for processor, generation, expected in (
                    ("A Q", "", ["a"]), ("A P", "1", ["a", "a-1"]), ("A Q", "2", ["a-1", "a-2"]),
                    ("A Q", "3", ["a-1", "a-2", "a-3"]), ("A Q", "3", ["a-1", "a-2", "a-3"]),
                ):
                    published.keep(run | {"processor": processor, "generation": generation})
                    files = [name[:-5] for name in os.listdir(kept) if name.endswith(".json")]
                    self.assertEqual(sorted(files), expected)

    def test_every_run_has_colours(self):
        self.assertLessEqual(len(published.records(published.KEPT)), len(plot.COLOURS))

    def test_the_generation_of_a_processor(self):
        self.assertEqual(report.generation("AMD", 25, 17), "Zen 4")
        self.assertEqual(report.generation("AMD", 25, 1), "Zen 3")
        self.assertEqual(report.generation("AMD", 26, 2), "Zen 5")
        self.assertEqual(report.generation("Intel", 6, 173), "Granite Rapids")
        self.assertEqual(report.generation("Intel", 6, 1), "family 6 model 1")
        self.assertEqual(plot.name_of({"maker": "Intel"}), "Intel")

    def test_what_was_missed_does_not_look_reached(self):
        def said(value, needed, verdict, **more):
            return report.ratio({"ratio": value, "needed": needed, "verdict": verdict, **more})

        self.assertEqual(said(1.553, 1.0, "reached", figure=2), "1.55")
        self.assertEqual(said(0.9996, 1.0, "missed", figure=2), "0.9996")
        self.assertEqual(said(2.996, 3.0, "missed", figure=2), "2.996")
        self.assertEqual(said(2.99999, 3.0, "missed", figure=2), "less than 3")
        # Where two digits were kept, there are no more.
        self.assertEqual(said(1.1, 1.0, "reached"), "1.1")
        self.assertEqual(said(3.0, 3.0, "missed"), "less than 3")
        for run in published.records(published.KEPT):
            for result in run["results"]:
                for c in result["comparisons"]:
                    words = report.ratio(c)
                    if c["verdict"] == "missed" and not words.startswith("less than"):
                        self.assertLess(float(words), c["needed"], result["target"])

    def test_the_picture_has_the_figures(self):
        run = self.kept()
        run |= {"maker": "A", "generation": "2", "versions": {"libdat": "1.2.3", "rival": None}}
        run["results"] = run["results"][:1]
        words = [element.text for element in xml.fromstring(plot.svg([run])).iter() if element.text]
        self.assertIn("A 2, near: 1.10 us, peer 2.00 us: 1.82 times, needed 1: reached", words)
        self.assertIn("A 2, far: 400 us, peer 5.00 us: 0.013 times, needed 1: missed", words)
        self.assertIn("1", words)
        (about,) = [text for text in words if run["date"] in text]
        self.assertTrue(about.endswith(", 7 rounds, libdat 1.2.3"), about)

    def test_each_run_says_what_it_compares_with(self):
        for run in published.records(published.KEPT):
            self.assertIn("libdat", run["versions"], run["maker"])
            for result in run["results"]:
                for comparison in result["comparisons"]:
                    self.assertIn("other", comparison, result["target"])

    def test_svg_is_xml(self):
        run = self.kept()
        run["processor"] = "a <machine> & more"
        for index, result in enumerate(run["results"]):
            result["target"] += str(index)
        picture = plot.svg([run])
        self.assertTrue(xml.fromstring(picture).tag.endswith("svg"))
        self.assertEqual((picture.count(": no figure<"), picture.count(": open<")), (1, 1))
        self.assertEqual(plot.x_of(1), plot.LEFT + plot.WIDTH / 2)
        self.assertEqual(plot.x_of(1e9), plot.LEFT + plot.WIDTH)


class Choice(unittest.TestCase):
    def test_all_by_default(self):
        self.assertEqual(main.chosen(""), TARGETS)

    def test_by_the_beginning_of_a_name(self):
        keys = [t.key for t in main.chosen("tcp.send, loopback")]
        self.assertIn("tcp.send.64", keys)
        self.assertIn("loopback.send.8", keys)
        self.assertFalse(any(key.startswith("shm") for key in keys))
        # A whole name, not every name that begins with it.
        self.assertEqual(len(main.chosen("shm.send.64")), 1)
        with self.assertRaises(SystemExit):
            main.chosen("nothing")

    def test_keys_are_unique(self):
        keys = [t.key for t in TARGETS]
        self.assertEqual(len(keys), len(set(keys)))


if __name__ == "__main__":
    unittest.main()
