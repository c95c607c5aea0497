# SPDX-License-Identifier: MIT OR Apache-2.0
"""Tests that the lists of packages in scripts/deps.sh have what the benchmarks run."""

import os
import re
import shutil
import subprocess
import unittest

import programs

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DEPS = os.path.join(ROOT, "scripts", "deps.sh")

# Which package brings what a script runs, or what is compiled and run for it: by the list of the
# script, the script, and what stands there.
SCRIPTS = {
    ("bench", "scripts/bench.sh"): {
        "python3": "python3",
        "unshare": "util-linux",
        "ip route": "iproute2",
    },
    ("bench", "benches/ucx/touch.c"): {
        "ucp/api/ucp.h": "libucx-dev",
    },
    ("bench-verbs", "scripts/bench-verbs.sh"): {
        "valgrind": "valgrind",
        # The original library, and its provider.
        "libdaplofa.so.2": "libdapl2",
    },
    ("bench-profile", "scripts/bench-profile.sh"): {
        "valgrind": "valgrind",
        "addr2line": "binutils",
        "python3": "python3",
    },
    ("bench-verbs", "benches/verbs/standin.h"): {
        "infiniband/verbs.h": "libibverbs-dev",
    },
    ("bench-verbs", "benches/verbs/standin_cm.c"): {
        "rdma/rdma_cma.h": "librdmacm-dev",
    },
}


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def packages(name):
    done = subprocess.run([DEPS, "--list", name], capture_output=True, text=True, check=True)
    return done.stdout.split()


def files(package):
    """The names of the files of an installed package; none if it is not installed."""
    if not shutil.which("dpkg"):
        return set()
    done = subprocess.run(["dpkg", "-L", package], capture_output=True, text=True, check=False)
    return {os.path.basename(line) for line in done.stdout.splitlines()}


class Packages(unittest.TestCase):
    def test_every_list_is_set_once(self):
        names = re.findall(r"^([a-z_]+)=[\"'][a-z$]\S* ", read("scripts/deps.sh"), re.MULTILINE)
        self.assertIn("bench", names)
        self.assertEqual(sorted(names), sorted(set(names)))

    def test_every_list_that_is_asked_for_is_there(self):
        asked = re.findall(r"scripts/deps\.sh (\S+)", read("Makefile"))
        asked.remove("--check")
        lists = ["aarch64", "bench", "bench-profile", "bench-verbs", "build", "check", "check-long",
                 "check-rdma-sys", "deb", "fresh", "fuzz", "i686", "lint", "musl", "ppc64le", "programs", "riscv64",
                 "rpm", "run", "s390x"]
        self.assertEqual(sorted(set(asked)), lists)
        for name in asked:
            self.assertIn("gcc", packages(name), name)

    def test_every_target_that_runs_something_asks_for_a_list(self):
        makefile = read("Makefile")
        recipes = re.findall(r"^([a-z][a-z-]*):.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
        without = {target for target, recipe in recipes
                   if target in makefile.split(".PHONY:")[1].split("\n")[0].split()
                   and "scripts/deps.sh" not in recipe}
        # These build, and the rule of the libraries looks; or their script does; or they need nothing.
        self.assertEqual(without, {"help", "install", "stage", "uninstall", "dist", "clean"})

    def test_make_asks_for_the_list_of_each_benchmark(self):
        for name in ("bench", "bench-verbs"):
            recipe = re.search(rf"^{name}:\n((\t.*\n)+)", read("Makefile"), re.MULTILINE)
            self.assertIn(f"scripts/deps.sh {name}\n", recipe.group(1))

    def test_the_programs_that_are_measured_beside_are_listed(self):
        self.assertLessEqual({"ucx_perftest", "fi_pingpong"}, set(programs.PACKAGES))
        self.assertLessEqual(set(programs.PACKAGES.values()), set(packages("bench")))

    def test_what_scripts_run_is_listed(self):
        for (name, script), needs in SCRIPTS.items():
            text, listed = read(script), packages(name)
            for what, package in needs.items():
                self.assertIn(what, text, script)
                self.assertIn(package, listed, f"{what} of {script}")

    def test_installed_packages_have_their_programs(self):
        looked = 0
        for program, package in programs.PACKAGES.items():
            found = files(package)
            if found:
                looked += 1
                self.assertIn(program, found, package)
        if not looked:
            self.skipTest("none of the packages is installed here")


if __name__ == "__main__":
    unittest.main()
