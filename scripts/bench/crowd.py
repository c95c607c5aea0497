# SPDX-License-Identifier: MIT OR Apache-2.0
"""What programs find that have more than one connection, or more processes than processors, or no memory
that stays registered. One table for each PART, all of them if none is named:

connections   one message at a time over one of many connections, in turn and in a random order
pollers       pairs of processes that poll on two processors, beside UCX and libfabric
fairness      one message at a time beside streams of the same process
pressure      the memory of a sender whose peer takes nothing any more
registration  messages whose memory is registered anew each time, private and in shared memory
writes        windows of short RDMA writes

Each figure is of one run; on a machine that does something else, take the best of several.
Exit status: 0, 1 if something could not be measured, 2 for a mistake in the command line."""

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time

from programs import START, Failed, listening, of_others, parse_fi, parse_ucx, run_pair

# Paths by their names here and the parameters of their IAs.
PATHS = {"shm": "path=shm", "shared": "path=shm memory=shared", "tcp": "path=tcp"}
CPUS = (0, 1)
DAT_PORT, UCX_PORT, FI_PORT = 20900, 22000, 23000
# A pair of processes that takes longer than this is given up.
LIMIT = 30


def configuration():
    lines = (
        f'{name} u2.0 threadsafe default builtin:soft libdat.1.0 "lo {parameters}" ""\n'
        for name, parameters in PATHS.items()
    )
    return "".join(lines)


class Table:
    """Rows that are printed as soon as they are there."""

    def __init__(self, title, *heads):
        self.widths = [max(len(head), 8) for head in heads]
        print(f"{title}\n{self.line(heads)}", flush=True)
        self.failed = 0

    def line(self, cells):
        padded = (f"{cell:>{width}}" for cell, width in zip(cells, self.widths))
        return "  ".join(padded).rstrip()

    def row(self, *cells):
        texts = (f"{cell:.3f}" if isinstance(cell, float) else str(cell) for cell in cells)
        print(self.line(texts), flush=True)

    def failure(self, *cells, why):
        self.failed += 1
        print(f"{self.line(str(cell) for cell in cells)}  failed: {why}", flush=True)

    def end(self):
        print(flush=True)
        return self.failed


class Programs:
    """dat-perf and the programs of others."""

    def __init__(self, tools, directory):
        self.perf = os.path.join(tools, "dat-perf")
        self.probe = os.path.join(tools, "bench-probe")
        conf = os.path.join(directory, "dat.conf")
        with open(conf, "w", encoding="ascii") as file:
            file.write(configuration())
        self.env = dict(
            os.environ, DAT_OVERRIDE=conf, LD_LIBRARY_PATH=directory, FI_LOG_LEVEL="error"
        )

    def pair(self, path, *arguments, port=DAT_PORT, cpus=CPUS, seconds=1.0):
        """The report of a client with a server of its own, each on its processor; both on both if `cpus`
        is none."""
        here, there = (str(cpu) for cpu in cpus) if cpus else ("0,1", "0,1")
        pin = [of_others("taskset"), "-c"]
        server = [*pin, there, self.perf, "--server", "--once", "-i", path, "-q", str(port)]
        client = [*pin, here, self.perf, "--client", "127.0.0.1", "-i", path, "-q", str(port)]
        client += ["--json", "--time", str(seconds), *map(str, arguments)]
        return json.loads(run_pair(server, client, port, self.env, LIMIT))

    def latency(self, path, size, *arguments, **options):
        """Microseconds of a message one way: median and mean."""
        report = self.pair(path, "-t", "latency", "-o", "send", "-s", size, *arguments, **options)
        latency = report["results"][0]["latency_us"]
        return latency["p50"], latency["mean"]

    def stream(self, path, size, *arguments):
        """GB/s of messages one way."""
        what = ("-t", "bandwidth", "-o", "send", "-s", size, *arguments)
        return self.pair(path, *what)["results"][0]["bytes_per_second"] / 1e9


# --- many connections ----------------------------------------------------------------------


def connections(programs, options):
    table = Table(
        "Messages of 8 bytes over many connections, one at a time: microseconds one way (median, mean),\n"
        "how many times the median of the first row that is, and microseconds to make a connection",
        "path", "order", "connections", "median", "mean", "times", "connecting",
    )
    for path in ("shm", "tcp"):
        for order in ("turn", "random"):
            first = None
            for count in options.endpoints:
                try:
                    by_chance = ["--random"] if order == "random" else []
                    report = programs.pair(
                        path, "-t", "latency", "-o", "send", "-s", 8, "-w", 1, "-e", count, *by_chance,
                        seconds=2.0,
                    )
                except Failed as failed:
                    table.failure(path, order, count, why=failed)
                    continue
                latency = report["results"][0]["latency_us"]
                first = first or latency["p50"]
                each = report["connect_seconds"] / count * 1e6
                table.row(
                    path, order, count, latency["p50"], latency["mean"], latency["p50"] / first, each
                )
    try:
        done = subprocess.run(
            [programs.probe, "connect", "0", "1", "1000"],
            capture_output=True, text=True, timeout=LIMIT, check=True,
        )
        table.row("socket", "", 1000, "", "", "", float(done.stdout.split()[1]) / 1e3)
    except (OSError, subprocess.SubprocessError, IndexError, ValueError) as error:
        table.failure("socket", "", 1000, why=error)
    return table.end()


# --- more pollers than processors ----------------------------------------------------------


def dat_mean(programs, path, number, _count):
    return programs.latency(path, 8, port=21000 + number, cpus=None, seconds=2.0)[1]


def ucx_mean(programs, path, number, count):
    env = dict(programs.env, UCX_TLS=path, UCX_WARN_UNUSED_ENV_VARS="n")
    if path == "tcp":
        env["UCX_NET_DEVICES"] = "lo"
    port = UCX_PORT + number
    tool = [of_others("taskset"), "-c", "0,1", of_others("ucx_perftest"), "-p", str(port)]
    what = ["-t", "tag_lat", "-s", "8", "-n", str(count), "-w", "100", "-f", "-v"]
    row = parse_ucx(run_pair(tool, [*tool, "127.0.0.1", *what], port, env, LIMIT))
    return row["overall_lat"]


def fabric_mean(programs, path, number, count):
    kind = ["-p", "shm", "-e", "rdm"] if path == "shm" else ["-p", "tcp", "-e", "msg"]
    port = FI_PORT + number
    tool = [of_others("taskset"), "-c", "0,1", of_others("fi_pingpong"), *kind]
    tool += ["-I", str(count), "-S", "8"]
    server, client = [*tool, "-B", str(port)], [*tool, "-P", str(port), "127.0.0.1"]
    return parse_fi(run_pair(server, client, port, programs.env, LIMIT)).mean


def at_once(count, call):
    """What `count` calls return that run at the same time, or the failure of one of them."""
    results = [None] * count

    def run(number):
        try:
            results[number] = call(number)
        except Failed as failed:
            results[number] = failed

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        if isinstance(result, Failed):
            raise result
    return results


def pollers(programs, options):
    table = Table(
        "Pairs of processes that poll, on two processors: microseconds of a message of 8 bytes one way, mean\n"
        "of the pair that has the shortest and of the one that has the longest",
        "program", "path", "pairs", "shortest", "longest",
    )
    rivals = {"libdat": dat_mean, "ucx": ucx_mean, "libfabric": fabric_mean}
    for path in ("shm", "tcp"):
        for pairs in options.pairs:
            # Where processes wait for each other's time slices a message may take milliseconds.
            count = 3000 if pairs > 1 else 200_000
            for name, mean in rivals.items():
                try:
                    means = at_once(pairs, lambda number: mean(programs, path, number, count))
                    table.row(name, path, pairs, min(means), max(means))
                except Failed as failed:
                    table.failure(name, path, pairs, why=failed)
    return table.end()


# --- fairness ------------------------------------------------------------------------------


def fairness(programs, _options):
    table = Table(
        "Messages of 8 bytes on one connection, while others of the same two processes carry streams:\n"
        "microseconds one way (median, 99 %, longest), and GB/s of all streams; none and alone: what\n"
        "the messages take without streams, and what the streams carry without them",
        "path", "streams", "size", "median", "99 %", "longest", "GB/s", "alone",
    )
    for path in ("shm", "tcp"):
        try:
            report = programs.pair(path, "-t", "latency", "-o", "send", "-s", 8, "-e", 2)
            alone = report["results"][0]["latency_us"]
            table.row(path, "none", "", alone["p50"], alone["p99"], alone["max"])
        except Failed as failed:
            table.failure(path, "none", "", why=failed)
        for size in ("64K", "1M"):
            for streams in (1, 8):
                what = ("-w", 16, "-s", size)
                try:
                    carried = programs.stream(path, size, "-w", 16, "-e", streams)
                    report = programs.pair(path, "-t", "fairness", *what, "-o", "send", "-e", streams + 1)
                except Failed as failed:
                    table.failure(path, streams, size, why=failed)
                    continue
                row = report["results"][0]
                took, rate = row["latency_us"], row["bytes_per_second"] / 1e9
                table.row(path, streams, size, took["p50"], took["p99"], took["max"], rate, carried)
    return table.end()


# --- back-pressure -------------------------------------------------------------------------


def memory_of(pid):
    """MiB of memory that a process has to itself or shares with its peer."""
    with open(f"/proc/{pid}/status", encoding="ascii") as lines:
        return resident(lines)


def resident(status):
    kib = [int(line.split()[1]) for line in status if line.startswith(("RssAnon", "RssShmem"))]
    return sum(kib) / 1024


def pressed(programs, path, op, size):
    """MiB of a sender while its peer takes what comes, the most while the peer is stopped, and at the end,
    when the peer has gone on and all has arrived and was right."""
    tool = [programs.perf, "-i", path, "-q", str(DAT_PORT)]
    what = ["-t", "bandwidth", "-o", op, "-s", size, "-w", "256", "--verify", "--time", "4"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": programs.env}
    server = subprocess.Popen([*tool, "--server", "--once"], **quiet)
    client = None
    try:
        end = time.monotonic() + START
        while not listening(DAT_PORT):
            if server.poll() is not None or time.monotonic() > end:
                raise Failed("dat-perf: the server does not listen")
            time.sleep(0.01)
        client = subprocess.Popen([*tool, "--client", "127.0.0.1", *what], **quiet)
        time.sleep(2)
        if client.poll() is not None:
            raise Failed("dat-perf: the client has ended too early")
        before = memory_of(client.pid)
        server.send_signal(signal.SIGSTOP)
        stopped = 0
        for _ in range(20):
            time.sleep(0.1)
            stopped = max(stopped, memory_of(client.pid))
        server.send_signal(signal.SIGCONT)
        time.sleep(0.5)
        after = memory_of(client.pid) if client.poll() is None else stopped
        if client.wait(timeout=LIMIT) != 0:
            raise Failed(f"dat-perf: status {client.returncode} after the peer was stopped")
        return before, stopped, after
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Failed(f"dat-perf: {error}") from error
    finally:
        for process in filter(None, (client, server)):
            process.kill()
            process.wait()


def pressure(programs, _options):
    table = Table(
        "A sender with 256 operations in flight, whose peer is stopped for 2 seconds (SIGSTOP) and goes on:\n"
        "MiB of the sender's memory while the peer runs, the most while it is stopped, and afterwards",
        "path", "op", "size", "running", "stopped", "afterwards",
    )
    for path in ("shm", "tcp"):
        for op in ("send", "write"):
            for size in ("4K", "256K"):
                try:
                    table.row(path, op, size, *pressed(programs, path, op, size))
                except Failed as failed:
                    table.failure(path, op, size, why=failed)
    return table.end()


# --- registration --------------------------------------------------------------------------


def registration(programs, _options):
    table = Table(
        "Messages whose memory stays registered, and messages whose memory both ends register before and free\n"
        "afterwards: microseconds one way (median); what one registration adds, by that",
        "memory", "size", "once", "each time", "adds",
    )
    for path, memory in (("shm", "private"), ("shared", "shared"), ("tcp", "tcp")):
        for size in ("4K", "64K", "1M", "4M"):
            try:
                once = programs.latency(path, size)[0]
                each = programs.latency(path, size, "--register")[0]
                table.row(memory, size, once, each, (each - once) / 2)
            except Failed as failed:
                table.failure(memory, size, why=failed)
    return table.end()


# --- short RDMA writes ---------------------------------------------------------------------


def writes(programs, _options):
    table = Table(
        "RDMA writes, 64 in flight, as the short messages of MPI libraries are, to a program that polls its events"
        " or makes no call: millions a second, and MB/s",
        "memory", "target", "size", "M/s", "MB/s",
    )
    targets = (("polls", ()), ("no call", ("--passive",)))
    for path, memory in (("shm", "private"), ("shared", "shared"), ("tcp", "tcp")):
        for target, options in targets:
            for size in (8, 64, 512):
                try:
                    report = programs.pair(path, "-t", "rate", "-o", "write", "-s", size, *options)
                    rate = report["results"][0]["messages_per_second"] / 1e6
                    table.row(memory, target, size, rate, rate * size)
                except Failed as failed:
                    table.failure(memory, target, size, why=failed)
    return table.end()


PARTS = {
    part.__name__: part
    for part in (connections, pollers, fairness, pressure, registration, writes)
}


def numbers(text):
    return [int(word) for word in text.split()]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tools", help="directory of dat-perf, bench-probe and libdat2.so")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--endpoints", type=numbers, default=[100, 1000, 5000, 10000])
    parser.add_argument("--pairs", type=numbers, default=[1, 2, 4])
    options = parser.parse_args()
    unknown = [part for part in options.parts if part not in PARTS]
    if unknown:
        parser.error(f"no part is called {unknown[0]}: {', '.join(PARTS)}")
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    failed = 0
    with tempfile.TemporaryDirectory() as directory:
        library = os.path.realpath(os.path.join(options.tools, "libdat2.so"))
        os.symlink(library, os.path.join(directory, "libdat2.so.2"))
        programs = Programs(options.tools, directory)
        for name in options.parts or PARTS:
            failed += PARTS[name](programs, options)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
