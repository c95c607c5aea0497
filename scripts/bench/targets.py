# SPDX-License-Identifier: MIT OR Apache-2.0
"""What libdat is to reach: between processes of one host, in one process, over TCP.

Each target is a ratio to the best other program, or to a limit of the machine, in the same run;
the absolute figures are those of one machine and stand there for the reader."""

from model import Source, Target
from programs import (
    copy,
    dat,
    exchange,
    fabric,
    memcpy,
    raw_stream,
    raw_tcp,
    ucx,
    ucx_touch,
    vmread,
    wake,
)

KIB, MIB = 1 << 10, 1 << 20
SHM = "posix,cma"


def ours(run):
    return Source("libdat", run)


def pair(near, far):
    return {"near": near, "far": far}


def both(value):
    return pair(value, value)


def name(size):
    if size >= MIB:
        return f"{size // MIB} MiB"
    return f"{size // KIB} KiB" if size >= KIB else f"{size} B"


def shm_send(size, needed=1.0, aim=None, mapped=False):
    """A message between processes; with memory that peers map if `mapped`."""
    others = [Source("UCX", ucx("us", "tag_lat", size, SHM))]
    if size <= 4 * KIB:
        others.append(Source("libfabric shm", fabric("shm", "rdm", size)))
    ia, kind, words = ("bench-mapped", "mapped.", ", mapped memory") if mapped else ("bench", "", "")
    return Target(
        f"shm.{kind}send.{size}",
        f"send/recv {name(size)}{words}, one way",
        "us",
        ours(dat("us", "latency", "send", size, ia)),
        tuple(others),
        both(needed),
        aim or {},
    )


def shm_touched(size, needed=1.0):
    """The same with messages that are written before and read afterwards."""
    return Target(
        f"shm.touched.send.{size}",
        f"send/recv {name(size)}, written and read, one way",
        "us",
        ours(dat("us", "latency", "send", size, extra=("--touch",))),
        (Source("UCX", ucx_touch(size, SHM)),),
        both(needed),
        {},
    )


def one_sided(op, size, ia="bench"):
    """An RDMA operation whose target does nothing.

    A write may complete before it has arrived; so many are timed, one at a time, until the last
    one has."""
    if op == "read":
        return ours(dat("us", "latency", op, size, ia, extra=("--passive",)))
    return ours(dat("us", "bandwidth", op, size, ia, extra=("--passive", "-w", "1")))


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


def mapped(op, size, rival, factors, aims):
    """The same in memory that peers map (memory=eager)."""
    return Target(
        f"shm.mapped.{op}.{size}",
        f"RDMA {op} {name(size)}, mapped memory",
        "us",
        one_sided(op, size, "bench-mapped"),
        (rival,),
        factors,
        aims,
    )


def mapped_small(op, size):
    """Against the kernel's copy."""
    return mapped(op, size, Source("kernel's copy", vmread(size)), both(1.0), both(0.15))


def mapped_bulk(op, size):
    """Within a tenth of memcpy."""
    return mapped(op, size, Source("memcpy", copy(size)), both(1 / 1.1), {})


def mapped_poll(size):
    """A write into memory that the peer polls: within a tenth of a plain copy."""
    return Target(
        f"shm.mapped.write-poll.{size}",
        f"RDMA write {name(size)}, mapped and polled, one way",
        "us",
        ours(dat("us", "latency", "write-poll", size, "bench-mapped")),
        (
            Source("plain copy", exchange(size)),
            Source("UCX", ucx("us", "tag_lat", size, SHM), decides=False),
        ),
        both(1 / 1.1),
        {},
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


def stream(key, label, crc, needed, aim):
    """Against a bare socket, with a pass for the checksum at each end if there is one."""
    ia = "bench-tcp" if crc else "bench-tcp-nocrc"
    return Target(
        f"tcp.stream.{key}",
        f"1 MiB stream, {label}",
        "GB/s",
        ours(dat("GB/s", "bandwidth", "send", MIB, ia, extra=("-w", "32"))),
        (
            Source("bare socket", raw_stream(MIB, crc)),
            Source("UCX tcp", ucx("GB/s", "tag_bw", MIB, "tcp"), decides=False),
        ),
        both(needed),
        aim,
    )


def tcp_send(size, aim=None):
    """Ahead of the others, which have no checksums."""
    return Target(
        f"tcp.send.{size}",
        f"send/recv {name(size)}, one way, CRC on",
        "us",
        ours(dat("us", "latency", "send", size, "bench-tcp")),
        (
            Source("libfabric net", fabric("net", "rdm", size)),
            Source("libfabric tcp", fabric("tcp", "msg", size)),
            Source("UCX tcp", ucx("us", "tag_lat", size, "tcp")),
        ),
        both(1.0),
        aim or {},
    )


TARGETS = (
    shm_send(8, aim=pair(0.10, 0.40)),
    shm_send(64, aim=pair(0.10, 0.40)),
    shm_send(512),
    shm_send(4 * KIB, aim=pair(0.20, 0.85)),
    shm_send(16 * KIB),
    shm_send(32 * KIB),
    shm_send(64 * KIB, 1.35),
    shm_send(256 * KIB),
    shm_send(MIB, 2.0),
    shm_send(4 * MIB),
    shm_touched(8),
    shm_touched(512),
    shm_touched(4 * KIB),
    shm_touched(16 * KIB),
    shm_touched(64 * KIB, 1.35),
    shm_touched(256 * KIB),
    shm_touched(MIB, 2.0),
    shm_touched(4 * MIB),
    shm_send(64 * KIB, 2.5, mapped=True),
    shm_send(MIB, 3.0, mapped=True),
    Target(
        "shm.rate.8",
        "message rate 8 B, both completions",
        "M/s",
        ours(dat("M/s", "rate", "send", 8)),
        (Source("UCX", ucx("M/s", "tag_bw", 8, SHM)),),
        pair(1.0, 1.4),
        pair(25, 8),
    ),
    # As MPI libraries send their short messages. Through shared memory they are not to be slower than over TCP.
    Target(
        "shm.rate.write.8",
        "RDMA writes 8 B, 64 in flight, target polls",
        "M/s",
        ours(dat("M/s", "rate", "write", 8)),
        (Source("libdat over TCP", dat("M/s", "rate", "write", 8, "bench-tcp")),),
        both(1.0),
        {},
    ),
    # 1.4 us where the kernel's copy takes 1.2 us, 76 us where it takes 72 us.
    passive("write", 8, 1.4 / 1.2, 1.4),
    passive("read", 8, 1.4 / 1.2, 1.4),
    passive("write", 4 * KIB, 1.4 / 1.2, 1.4),
    passive("read", 4 * KIB, 1.4 / 1.2, 1.4),
    passive("write", MIB, 76 / 72, 76),
    passive("read", MIB, 76 / 72, 76),
    # A plain copy of memory that nobody writes meanwhile needs no call of a library at all.
    mapped_small("write", 8),
    mapped_small("read", 8),
    mapped_small("write", 4 * KIB),
    mapped_small("read", 4 * KIB),
    mapped_bulk("write", MIB),
    mapped_bulk("read", MIB),
    mapped_poll(8),
    mapped_poll(4 * KIB),
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
    tcp_send(64, pair(4.2, 6.0)),
    tcp_send(512),
    tcp_send(4 * KIB),
    tcp_send(16 * KIB),
    tcp_send(32 * KIB),
    Target(
        f"tcp.send.{64 * KIB}",
        "send/recv 64 KiB, one way, CRC on",
        "us",
        ours(dat("us", "latency", "send", 64 * KIB, "bench-tcp")),
        (
            Source("bare socket with CRC", raw_tcp(64 * KIB, True)),
            Source("libfabric tcp", fabric("tcp", "msg", 64 * KIB), decides=False),
            Source("UCX tcp", ucx("us", "tag_lat", 64 * KIB, "tcp"), decides=False),
        ),
        both(0.95),
        pair(10, 18),
    ),
    stream("crc", "CRC on", True, 0.95, pair(9, 5.8)),
    stream("nocrc", "CRC off", False, 0.85, pair(11, 6.4)),
    Target(
        "tcp.rate.64",
        "message rate 64 B, bursts",
        "M/s",
        ours(dat("M/s", "rate", "send", 64, "bench-tcp")),
        (Source("UCX tcp", ucx("M/s", "tag_bw", 64, "tcp")),),
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
bench-mapped    u2.0 threadsafe default builtin:soft libdat.1.0 "lo memory=eager" ""
bench-tcp       u2.0 threadsafe default builtin:soft libdat.1.0 "lo path=tcp{cc}" ""
bench-tcp-nocrc u2.0 threadsafe default builtin:soft libdat.1.0 "lo path=tcp crc=off{cc}" ""
"""
