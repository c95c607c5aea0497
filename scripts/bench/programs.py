# SPDX-License-Identifier: MIT OR Apache-2.0
"""The programs that are run, and what is read from their output."""

import json
import os
import shutil
import subprocess
import time
from dataclasses import dataclass, field

from model import Figures

MIB = 1 << 20
# A program that takes longer than this has hung.
LIMIT = 12
# A server that listens nowhere after this time has failed.
START = 8

DAT_QUALIFIER = 18520
UCX_PORT = 18521
UCX_TOUCH_PORT = 18522
FI_PORT = 47592


# The programs of others that are run, and the packages of Debian that bring them.
PACKAGES = {
    "ucx_perftest": "ucx-utils",
    "fi_pingpong": "libfabric-bin",
    "taskset": "util-linux",
}


class Failed(Exception):
    """A program that has given no figure: why."""


@dataclass
class Context:
    """Where the programs are and on which processors they run."""

    # Directory of dat-perf and bench-probe, and of the programs on the libraries of others.
    tools: str
    others: str
    cpus: tuple
    conf: str
    seconds: float = 0.15
    probes: dict = field(default_factory=dict)

    def environment(self, extra=None):
        env = dict(os.environ, DAT_OVERRIDE=self.conf)
        # Debian's libfabric looks for devices that are not there, and says so.
        env.setdefault("FI_LOG_LEVEL", "error")
        env.update(extra or {})
        return env


# --- reading -------------------------------------------------------------------------------


def parse_dat(text):
    """The only row of a JSON report of dat-perf."""
    try:
        rows = json.loads(text)["results"]
        if len(rows) == 1:
            return rows[0]
    except (ValueError, KeyError, TypeError):
        pass
    raise Failed("dat-perf: no report of one measurement")


def parse_ucx(text):
    """The last row of ucx_perftest -f -v, by the names of its head."""
    heads, row = None, None
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if "overall_lat" in cells:
            heads = cells
        elif heads and len(cells) == len(heads):
            row = cells
    if row is None:
        raise Failed("ucx_perftest: no figures")
    try:
        return {head: float(cell) for head, cell in zip(heads, row)}
    except ValueError as error:
        raise Failed("ucx_perftest: no figures") from error


def parse_fi(text):
    """Microseconds of a transfer of fi_pingpong: a mean."""
    heads = None
    for line in text.splitlines():
        cells = line.split()
        if "usec/xfer" in cells:
            # "total time" and so on are one word each but for the first column's name.
            heads = cells
        elif heads and len(cells) == len(heads):
            try:
                return Figures(mean=float(cells[heads.index("usec/xfer")]))
            except ValueError:
                continue
    raise Failed("fi_pingpong: no figures")


def parse_pair(text):
    """A median and a mean in one line."""
    try:
        return Figures(*map(float, text.split()))
    except (TypeError, ValueError) as error:
        raise Failed("no median and mean") from error


# --- running -------------------------------------------------------------------------------


def of_others(program):
    """The name of a program of another project, if it can be run."""
    package = PACKAGES[program]
    if not shutil.which(program):
        raise Failed(f"{program} is not installed (package {package})")
    return program


def pinned(cpu, command):
    return [of_others("taskset"), "-c", str(cpu), *command]


def listening(port):
    """Whether a TCP socket listens on the port, in this network namespace."""
    wanted = f":{port:04X}"
    for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        try:
            with open(table, encoding="ascii") as lines:
                for line in lines:
                    cells = line.split()
                    if cells[1].endswith(wanted) and cells[3] == "0A":
                        return True
        except OSError:
            pass
    return False


def last_line(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "no word"


def run_one(command, env, limit=LIMIT):
    try:
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise Failed(f"{command[3]}: no end after {limit} s") from error
    except OSError as error:
        raise Failed(str(error)) from error
    if done.returncode != 0:
        raise Failed(f"{command[3]}: {last_line(done.stderr or done.stdout)}")
    return done.stdout


def run_pair(server, client, port, env, limit=LIMIT):
    """Runs a client as soon as its server listens; returns what the client says."""
    try:
        process = subprocess.Popen(
            server, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
    except OSError as error:
        raise Failed(str(error)) from error
    try:
        deadline = time.monotonic() + START
        while not listening(port):
            if process.poll() is not None:
                raise Failed(f"{server[3]}: the server has ended")
            if time.monotonic() > deadline:
                raise Failed(f"{server[3]}: the server does not listen")
            time.sleep(0.005)
        text = run_one(client, env, limit)
        try:
            process.wait(timeout=3)
        except subprocess.TimeoutExpired:
            pass
        return text
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


# --- libdat --------------------------------------------------------------------------------


def of_latency(unit, size, middle, mean):
    """Figures from a median and a mean in microseconds, of one transfer; 0 where there is none."""
    if unit == "us":
        return Figures(middle or None, mean or None)
    return Figures(*(size / took / 1e3 if took else None for took in (middle, mean)))


def dat_figures(row, unit):
    if row["test"] == "latency":
        latency = row["latency_us"]
        return of_latency(unit, row["size"], latency["p50"], latency["mean"])
    if unit == "GB/s":
        return Figures(mean=row["bytes_per_second"] / 1e9)
    rate = row["messages_per_second"] / 1e6
    return Figures(mean=1 / rate if unit == "us" else rate)


def dat(unit, test, op, size, ia="bench", extra=(), loopback=False, factor=1.0):
    """dat-perf with one measurement."""

    def run(context):
        tool = os.path.join(context.tools, "dat-perf")
        what = ["-i", ia, "-t", test, "-o", op, "-s", str(size), "--json"]
        what += ["--time", str(context.seconds), *extra]
        first, second = context.cpus
        env = context.environment()
        if loopback:
            text = run_one(pinned(first, [tool, "--loopback", *what]), env)
        else:
            port = ["-q", str(DAT_QUALIFIER)]
            server = pinned(second, [tool, "--server", "--once", "-i", ia, *port])
            client = pinned(first, [tool, "--client", "127.0.0.1", *port, *what])
            text = run_pair(server, client, DAT_QUALIFIER, env)
        return dat_figures(parse_dat(text), unit).scaled(factor)

    return run


# --- UCX -----------------------------------------------------------------------------------


def ucx_figures(row, unit, size, trips=1):
    if unit == "M/s":
        return Figures(mean=row["overall_mr"] / 1e6)
    if unit == "us" or trips > 1:
        # Versions differ in whether they have it.
        middle = row.get("50.0_percentile_lat", 0) * trips
        return of_latency(unit, size, middle, row["overall_lat"] * trips)
    return Figures(mean=row["overall_mr"] * size / 1e9)


def iterations(size, fast, stream=False):
    """Enough for a twentieth of a second and more."""
    times = 4 if stream else 1
    if size <= 4096:
        return times * (100_000 if fast else 5_000)
    return times * max(100, (256 << 20 if fast else 128 << 20) // size)


def ucx(unit, test, size, tls, loopback=False, extra=(), number=None):
    """ucx_perftest; with itself its latency is half of a message, so it counts twice."""

    def run(context):
        count = number or iterations(size, tls != "tcp", test.endswith("_bw"))
        what = ["-t", test, "-s", str(size), "-n", str(count), "-w", str(count // 10)]
        what += ["-f", "-v", *extra]
        env = context.environment({"UCX_TLS": tls, "UCX_NET_DEVICES": "lo"})
        if tls != "tcp":
            del env["UCX_NET_DEVICES"]
        env["UCX_WARN_UNUSED_ENV_VARS"] = "n"
        first, second = context.cpus
        tool = [of_others("ucx_perftest"), "-p", str(UCX_PORT)]
        if loopback:
            text = run_one(pinned(first, [*tool, "-l", *what]), env)
            return ucx_figures(parse_ucx(text), unit, size, trips=2)
        server = pinned(second, tool)
        client = pinned(first, [*tool, "127.0.0.1", *what])
        return ucx_figures(parse_ucx(run_pair(server, client, UCX_PORT, env)), unit, size)

    return run


def ucx_touch(size, tls):
    """Our program on UCX that writes and reads its messages (benches/ucx/touch.c): one way."""

    def run(context):
        program = os.path.join(context.others, "touch")
        if not os.path.exists(program):
            raise Failed("touch is not built (package libucx-dev)")
        env = context.environment({"UCX_TLS": tls, "UCX_WARN_UNUSED_ENV_VARS": "n"})
        count = iterations(size, True) // 4
        what = [program, str(UCX_TOUCH_PORT), str(size), str(count)]
        first, second = context.cpus
        server, client = pinned(second, what), pinned(first, [*what, "127.0.0.1"])
        return parse_pair(run_pair(server, client, UCX_TOUCH_PORT, env)).scaled(1e-3)

    return run


# --- libfabric -----------------------------------------------------------------------------


def fabric(provider, endpoint, size):
    """fi_pingpong: microseconds one way."""

    def run(context):
        count = iterations(size, provider == "shm") // 2
        what = ["-p", provider, "-e", endpoint, "-I", str(count), "-S", str(size)]
        tool = [of_others("fi_pingpong"), *what]
        first, second = context.cpus
        server, client = pinned(second, tool), pinned(first, [*tool, "127.0.0.1"])
        return parse_fi(run_pair(server, client, FI_PORT, context.environment()))

    return run


# --- the machine ---------------------------------------------------------------------------


def probe(context, what, *arguments):
    """Nanoseconds of a limit of the machine."""
    tool = os.path.join(context.tools, "bench-probe")
    command = [tool, what, *map(str, arguments)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Failed(f"bench-probe {what}: no figure") from error
    return parse_pair(done.stdout)


def wake(context):
    """Microseconds until a sleeper on the other processor runs."""
    return probe(context, "wake", *context.cpus).scaled(1e-3)


def exchange(size):
    """Microseconds of a copy into memory that the other processor polls, one way."""
    return lambda context: probe(context, "exchange", *context.cpus, size).scaled(1e-3)


def raw_tcp(size, crc):
    """Microseconds of a message over a bare socket, one way."""
    sums = "crc" if crc else "plain"
    return lambda context: probe(context, "tcp", *context.cpus, size, sums).scaled(1e-3)


def raw_stream(size, crc):
    """GB/s of messages over a bare socket."""

    def run(context):
        sums = "crc" if crc else "plain"
        took = probe(context, "stream", *context.cpus, size, sums).scaled(1e-3)
        return of_latency("GB/s", size, took.median, took.mean)

    return run


def vmread(size):
    """Microseconds of the kernel's copy between processes."""
    return lambda context: probe(context, "vmread", context.cpus[0], size).scaled(1e-3)


def copy(size):
    """Microseconds of memcpy, the memory being warm."""
    return lambda context: probe(context, "copy", context.cpus[0], size).scaled(1e-3)


def memcpy(size):
    """GB/s of the same."""

    def run(context):
        took = copy(size)(context)
        return of_latency("GB/s", size, took.median, took.mean)

    return run
