# SPDX-License-Identifier: MIT OR Apache-2.0
"""Where the instructions of the data path are: what an operation costs by source file of this library.

Runs benches/verbs/overhead_dat (verbs without a device, and loopback) and dat-perf (one end of a
connection between two processes) under callgrind, with so many operations and with twice as many; the
difference is what the operations cost. Polls that find nothing while the connection is made are in it too, so
that between processes it takes many operations for a figure. An instruction that was inlined counts for the
file of this library that it was inlined into last."""

import argparse
import collections
import os
import re
import subprocess
import sys
import tempfile

from programs import Failed, run_one, run_pair

LIBRARY = "libdat2.so"
# Files below this share of the library's instructions are not shown.
LEAST = 0.015
PORT = 18533
# Seconds after which a program under callgrind, which runs some fifty times as long, has hung.
LIMIT = 120
# overhead_dat opens "bench".
ENTRY = 'bench u2.0 threadsafe default builtin:{device} libdat.1.0 "{params}" ""\n'


def callgrind(command, out):
    tool = ["valgrind", "--tool=callgrind", "--dump-instr=yes", f"--callgrind-out-file={out}"]
    return tool + command


def costs(path):
    """Instructions by address in the library, and those elsewhere."""
    ours, elsewhere = collections.Counter(), 0
    names, inside, address, skip = {}, False, 0, False
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            named = re.match(r"(c?)ob=\((\d+)\)(?: (.*))?$", line)
            if named:
                called, number, name = named.groups()
                if name:
                    names[number] = LIBRARY in name
                if not called:
                    inside = names[number]
                continue
            if line.startswith("calls="):
                # The next line is what the function called costs, which counts where it is.
                skip = True
                continue
            cost = re.match(r"(0x[0-9a-f]+|[+-]\d+|\*) \S+(?: (\d+))?$", line)
            if not cost:
                continue
            place = cost[1]
            if place.startswith("0x"):
                address = int(place, 16)
            elif place != "*":
                address += int(place)
            if skip:
                skip = False
            elif inside:
                ours[address] += int(cost[2] or 0)
            else:
                elsewhere += int(cost[2] or 0)
    return ours, elsewhere


def files(library, addresses):
    """The file of this library that the instruction at each address is in."""
    text = "\n".join(f"{address:#x}" for address in addresses)
    tool = ["addr2line", "-a", "-i", "-e", library]
    done = subprocess.run(tool, input=text, check=True, capture_output=True, text=True)
    found, address = {}, None
    for line in done.stdout.splitlines():
        if line.startswith("0x"):
            address = int(line, 16)
            continue
        # The innermost file comes first. What is of the standard library counts for who calls it.
        if line.startswith("/rustc/") or address in found:
            continue
        crate = re.search(r"/([\w-]+)-\d+\.\d[^/]*/src/", line)
        file = re.search(r"/src/(.*):", line)
        if crate and crate[1] != "libdat":
            found[address] = f"crate {crate[1]}"
        elif file:
            found[address] = file[1]
    return found


class Runs:
    """What runs the programs."""

    def __init__(self, out, work):
        self.out, self.work = os.path.realpath(out), work
        self.library = os.path.realpath(os.path.join(out, "lib", LIBRARY))

    def environment(self, device, params):
        with tempfile.NamedTemporaryFile("w", dir=self.work, delete=False) as conf:
            conf.write(ENTRY.format(device=device, params=params))
        paths = [os.path.join(self.out, "lib"), os.path.join(self.out, "bench-verbs", "lib")]
        return dict(os.environ, LD_LIBRARY_PATH=":".join(paths), DAT_OVERRIDE=conf.name)

    def one_process(self, device, operation):
        """Both ends in one process."""
        env = self.environment(device, "lo 0" if device == "verbs" else "lo")
        program = os.path.join(self.out, "bench-verbs", "overhead_dat")

        def run(count, out):
            run_one(callgrind([program, operation, str(count)], out), env, LIMIT)

        return run

    def in_one(self, options):
        """Both ends in dat-perf."""
        env = self.environment("soft", "lo")
        tool = [os.path.join(self.out, "cargo", "dat-perf"), "--loopback", "-i", "bench", *options]

        def run(count, out):
            run_one(callgrind([*tool, "-n", str(count)], out), env, LIMIT)

        return run

    def two_processes(self, params, end, options):
        """One end of two."""
        env = self.environment("soft", params)
        tool = os.path.join(self.out, "cargo", "dat-perf")
        server = [tool, "--server", "--once", "-i", "bench", "-q", str(PORT)]
        client = [tool, "--client", "127.0.0.1", "-i", "bench", "-q", str(PORT), *options]

        def run(count, out):
            ends = {"server": server, "client": [*client, "-n", str(count)]}
            ends[end] = callgrind(ends[end], out)
            run_pair(ends["server"], ends["client"], PORT, env, LIMIT)

        return run


def profile(runs, title, run, count):
    out = [os.path.join(runs.work, name) for name in ("once", "twice")]
    run(count, out[0])
    run(2 * count, out[1])
    (once, other_once), (twice, other_twice) = map(costs, out)
    each = {at: (twice[at] - once[at]) / count for at in twice if twice[at] != once[at]}
    by_file = collections.Counter()
    places = files(runs.library, each)
    for address, cost in each.items():
        by_file[places.get(address, "others")] += cost
    total = sum(by_file.values())
    print(f"{title}: {total:.0f} instructions in the library, ", end="")
    print(f"{max(0, other_twice - other_once) / count:.0f} elsewhere")
    for name, cost in by_file.most_common():
        if cost >= LEAST * total:
            print(f"  {cost:7.0f} {100 * cost / total:4.0f} %  {name}")
    print(flush=True)


def main():
    parser = argparse.ArgumentParser(prog="bench-profile")
    parser.add_argument("out", help="a build directory that make bench-profile has filled")
    parser.add_argument("only", nargs="*", help="beginnings of titles; without any, all")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        runs = Runs(options.out, work)
        one, two = runs.one_process, runs.two_processes
        rate = ["-t", "rate", "-o", "send", "-s"]
        paths = [
            ("verbs: RDMA write and completion", one("verbs", "write"), 20000),
            ("verbs: receive, send and two completions", one("verbs", "send"), 20000),
            ("verbs: empty dequeue", one("verbs", "empty"), 20000),
            ("verbs: RDMA write and ready wait", one("verbs", "wait"), 20000),
            ("loopback: receive, send and two completions", one("soft", "send"), 20000),
            ("loopback: RDMA write and completion", one("soft", "write"), 20000),
        ]
        for end in ("client", "server"):
            role = {"client": "sender", "server": "receiver"}[end]
            paths += [
                (f"shm: rate of 8 bytes, {role}", two("lo", end, [*rate, "8"]), 100000),
                (f"tcp: rate of 64 bytes, {role}", two("lo path=tcp", end, [*rate, "64"]), 100000),
                (f"tcp: rate of 4 KiB, {role}", two("lo path=tcp", end, [*rate, "4K"]), 20000),
            ]
        to_and_fro = ["-t", "latency", "-o", "send", "-s"]
        paths.append(("loopback: messages of 64 KiB", runs.in_one([*to_and_fro, "64K"]), 1000))
        between = two("lo", "client", [*to_and_fro, "64K"])
        paths.append(("shm: messages to and fro, 64 KiB, one end", between, 1000))
        for size, title, count in (("64", "64 bytes", 3000), ("4K", "4 KiB", 3000), ("64K", "64 KiB", 500)):
            between = two("lo path=tcp", "client", [*to_and_fro, size])
            paths.append((f"tcp: messages to and fro, {title}, one end", between, count))
        write = ["-t", "rate", "-o", "write", "-s", "8"]
        mapped = two("lo memory=eager", "client", write)
        paths.append(("shm: rate of RDMA writes of 8 bytes, mapped", mapped, 100000))
        chosen = [p for p in paths if not options.only or p[0].startswith(tuple(options.only))]
        if not chosen:
            sys.exit("bench-profile: no title begins so")
        print("Polls that find nothing count for the operation that they wait for. Copies and checksums are")
        print("those for a processor without AVX-512, as which callgrind shows itself to programs.\n")
        try:
            for path in chosen:
                profile(runs, *path)
        except Failed as failure:
            sys.exit(f"bench-profile: {failure}")


if __name__ == "__main__":
    main()
