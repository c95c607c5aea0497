# SPDX-License-Identifier: MIT OR Apache-2.0
"""What libdat is to reach: between processes of one host, in one process, over TCP.

Each target is a ratio to the best other program, or to a limit of the machine, in the same run;
the absolute figures are those of one machine and stand there for the reader."""

from model import Source, Target
from programs import dat, fabric, memcpy, ucx, vmread, wake

KIB, MIB = 1 << 10, 1 << 20
SHM = "posix,cma"


def ours(run, of_means=False):
    return Source("libdat", run, of_means=of_means)


def means(name, run):
    return Source(name, run, of_means=True)


def pair(near, far):
    return {"near": near, "far": far}


def both(value):
    return pair(value, value)


def name(size):
    if size >= MIB:
        return f"{size // MIB} MiB"
    return f"{size // KIB} KiB" if size >= KIB else f"{size} B"


def shm_send(size, needed, aim):
    others = [Source("UCX", ucx("us", "tag_lat", size, SHM))]
    if size <= 4 * KIB:
        others.append(means("libfabric shm", fabric("shm", "rdm", size)))
    return Target(
        f"shm.send.{size}",
        f"send/recv {name(size)}, one way",
        "us",
        ours(dat("us", "latency", "send", size)),
        tuple(others),
        needed,
        aim,
    )


def one_sided(op, size, ia="bench"):
    """An RDMA operation whose target does nothing.

    A write may complete before it has arrived; so many are timed, one at a time, until the last
    one has."""
    if op == "read":
        return ours(dat("us", "latency", op, size, ia, extra=("--passive",)))
    return ours(dat("us", "bandwidth", op, size, ia, extra=("--passive", "-w", "1")), True)


def passive(op, size, factor, aim):
    """One: no slower than the kernel's own copy."""
    others = [Source("kernel's copy", vmread(size))]
    if op == "read":
        own = ucx("us", "ucp_get", size, SHM, extra=("-O", "1", "-o"))
        others.append(Source("UCX, its own memory", own, decides=False))
    return Target(
        f"shm.{op}.{size}",
        f"RDMA {op} {name(size)}, target passive",
        "us",
        one_sided(op, size),
        tuple(others),
        both(1 / factor),
        both(aim),
    )


def mapped(op, size, factor, aim):
    """The same in memory that peers map (memory=shared), against the kernel's copy."""
    return Target(
        f"shm.mapped.{op}.{size}",
        f"RDMA {op} {name(size)}, mapped memory",
        "us",
        one_sided(op, size, "bench-mapped"),
        (Source("kernel's copy", vmread(size)),),
        both(factor),
        both(aim),
    )


def loopback_copy(size):
    return Target(
        f"loopback.send.{size}",
        f"send/recv {name(size)}, 95 % of memcpy",
        "GB/s",
        ours(dat("GB/s", "latency", "send", size, loopback=True)),
        (
            Source("memcpy", memcpy(size)),
            Source("UCX self", ucx("GB/s", "tag_lat", size, "self", loopback=True), False),
        ),
        both(0.95),
        {},
        one_processor=True,
    )


def stream(key, label, ia, aim):
    return Target(
        f"tcp.stream.{key}",
        f"1 MiB stream, {label}",
        "GB/s",
        ours(dat("GB/s", "bandwidth", "send", MIB, ia, extra=("-w", "32")), True),
        (means("UCX tcp", ucx("GB/s", "tag_bw", MIB, "tcp")),),
        both(1.0),
        aim,
    )


def tcp_send(size, needed, aim):
    label = f"send/recv {name(size)}, one way" + (", CRC on" if size > 64 else ", polling")
    return Target(
        f"tcp.send.{size}",
        label,
        "us",
        ours(dat("us", "latency", "send", size, "bench-tcp")),
        (
            means("libfabric net", fabric("net", "rdm", size)),
            means("libfabric tcp", fabric("tcp", "msg", size)),
            Source("UCX tcp", ucx("us", "tag_lat", size, "tcp")),
        ),
        needed,
        aim,
    )


TARGETS = (
    shm_send(8, both(1.0), pair(0.10, 0.40)),
    shm_send(64, both(1.0), pair(0.10, 0.40)),
    shm_send(4 * KIB, both(1.0), pair(0.20, 0.85)),
    shm_send(64 * KIB, pair(3.0, 1.6), pair(2.0, 4.5)),
    shm_send(MIB, pair(3.0, 2.0), pair(25, 40)),
    Target(
        "shm.rate.8",
        "message rate 8 B, both completions",
        "M/s",
        ours(dat("M/s", "rate", "send", 8), True),
        (means("UCX", ucx("M/s", "tag_bw", 8, SHM)),),
        pair(1.0, 1.4),
        pair(25, 8),
    ),
    # 1.4 us where the kernel's copy takes 1.2 us, 76 us where it takes 72 us.
    passive("write", 8, 1.4 / 1.2, 1.4),
    passive("read", 8, 1.4 / 1.2, 1.4),
    passive("write", 4 * KIB, 1.4 / 1.2, 1.4),
    passive("read", 4 * KIB, 1.4 / 1.2, 1.4),
    passive("write", MIB, 76 / 72, 76),
    passive("read", MIB, 76 / 72, 76),
    # 0.15 us where the kernel's copy takes 1.2 us, 20 us where it takes 72 us.
    mapped("write", 8, 1.2 / 0.15, 0.15),
    mapped("read", 8, 1.2 / 0.15, 0.15),
    mapped("write", 4 * KIB, 1.2 / 0.15, 0.15),
    mapped("read", 4 * KIB, 1.2 / 0.15, 0.15),
    mapped("write", MIB, 72 / 20, 20),
    mapped("read", MIB, 72 / 20, 20),
    Target(
        "shm.mapped.write-poll.8",
        "RDMA write 8 B, mapped and polled, one way",
        "us",
        ours(dat("us", "latency", "write-poll", 8, "bench-mapped")),
        (Source("UCX", ucx("us", "tag_lat", 8, SHM)),),
        both(1.0),
        pair(0.10, 0.40),
    ),
    Target(
        "shm.wake",
        "round trip to a sleeping waiter, 8 B",
        "us",
        ours(
            dat("us", "latency", "send", 8, extra=("--wait=server", "--pause", "300"), factor=2)
        ),
        (Source("bare wake", wake),),
        both(1 / 1.1),
        {},
    ),
    Target(
        "loopback.send.8",
        "send/recv 8 B with both completions",
        "us",
        ours(dat("us", "latency", "send", 8, loopback=True)),
        (Source("UCX self", ucx("us", "tag_lat", 8, "self", loopback=True)),),
        # 30 ns where UCX takes 29.
        both(29 / 30),
        both(0.030),
        one_processor=True,
    ),
    loopback_copy(64 * KIB),
    loopback_copy(MIB),
    tcp_send(64, both(1.0), pair(4.2, 6.0)),
    # "Equal" allows for noise.
    tcp_send(64 * KIB, both(0.97), pair(10, 18)),
    stream("crc", "CRC on", "bench-tcp", pair(9, 5.8)),
    stream("nocrc", "CRC off", "bench-tcp-nocrc", pair(11, 6.4)),
    Target(
        "tcp.rate.64",
        "message rate 64 B, bursts",
        "M/s",
        ours(dat("M/s", "rate", "send", 64, "bench-tcp"), True),
        (means("UCX tcp", ucx("M/s", "tag_bw", 64, "tcp")),),
        both(9.0),
        both(3.0),
    ),
    Target(
        "tcp.read.8",
        "RDMA read 8 B, 1.1 of two one-way trips",
        "us",
        ours(dat("us", "latency", "read", 8, "bench-tcp")),
        (
            Source("two trips", dat("us", "latency", "send", 8, "bench-tcp", factor=2)),
            # Each of these takes a millisecond.
            Source("UCX tcp", ucx("us", "ucp_get", 8, "tcp", extra=("-O", "1"), number=100), False),
        ),
        both(1 / 1.1),
        {},
    ),
)

# The interface adapters that the targets name.
CONFIGURATION = """\
bench           u2.0 threadsafe default builtin:soft libdat.1.0 "lo" ""
bench-mapped    u2.0 threadsafe default builtin:soft libdat.1.0 "lo memory=shared" ""
bench-tcp       u2.0 threadsafe default builtin:soft libdat.1.0 "lo path=tcp{cc}" ""
bench-tcp-nocrc u2.0 threadsafe default builtin:soft libdat.1.0 "lo path=tcp crc=off{cc}" ""
"""
