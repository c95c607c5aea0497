//! Peers that send for ever what is legal, or nearly so, and useful to no program: the memory of the
//! process grows by no more than a bound, and other connections work. The tests count what the
//! whole process has allocated, so they have a program of their own and run one after the other.

#[path = "connection_properties/mod.rs"]
#[allow(dead_code, reason = "each program uses some of its functions")]
mod connection_properties;
#[path = "common/iwarp.rs"]
#[allow(dead_code, reason = "each program uses some of its functions")]
mod iwarp;
#[path = "common/poll.rs"]
mod poll;
#[path = "common/shm_peer.rs"]
#[allow(dead_code, reason = "each program uses some of its functions")]
mod shm_peer;
#[path = "common/skip.rs"]
mod skip;
#[path = "common/soft.rs"]
mod soft;
#[path = "hostile/victim.rs"]
#[allow(dead_code, reason = "each program uses some of its functions")]
mod victim;

use std::io::{ErrorKind, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use dat_core::testing::device::soft::iwarp::fpdu::{Control, Tagged, Untagged};
use dat_core::testing::device::soft::iwarp::wire::*;
use dat_core::testing::device::*;

use iwarp::{
    OFFER, dial, mpa_bytes, read, receive_read_request, send, tagged, tagged_as, untagged,
};
use poll::completion;
use soft::PATIENCE;
use victim::{Host, Region};

/// Bytes that the process has allocated.
fn allocated() -> usize {
    // SAFETY: only reads numbers, under the locks of the allocator.
    let info = unsafe { libc::mallinfo2() };
    info.uordblks + info.hblkhd
}

/// The most bytes that were allocated at a time since that was reset: at each call of [`sample`].
static PEAK: AtomicUsize = AtomicUsize::new(0);

fn sample() {
    PEAK.fetch_max(allocated(), Ordering::Relaxed);
}

/// Held by the test that runs.
static ONE: Mutex<()> = Mutex::new(());

/// By how much the memory may grow for one connection: what waits for receives (256 KiB and as much
/// again while its queue grows), the buffers in which a thread reads and sends, and an FPDU.
const BOUND: usize = 1 << 20;
/// The same for a peer that has ended its stream behind that: the socket is read on then, as the end may
/// be one that does not wait for receives.
const BOUND_ENDED: usize = 2 << 20;
/// How much such a peer sends: the kernel has to take all of it, so that the end arrives.
const ENDED: usize = 1 << 19;
/// How much a peer sends, unless the library stops reading.
const FLOOD: usize = 8 << 20;
/// How long the library takes nothing until the peer gives up.
const STALL: Duration = Duration::from_millis(200);

/// Sends a piece again and again, without reading anything. False if the library has ended the
/// connection.
fn flood(host: &Host, peer: &mut TcpStream, mut piece: impl FnMut(&mut Vec<u8>)) -> bool {
    peer.set_nonblocking(true).unwrap();
    let mut chunk = Vec::with_capacity(1 << 17);
    let (mut sent, mut begin) = (0, 0);
    let mut last = Instant::now();
    loop {
        if begin == chunk.len() {
            chunk.clear();
            begin = 0;
            piece(&mut chunk);
        }
        match peer.write(&chunk[begin..]) {
            Ok(n) => {
                (sent, begin) = (sent + n, begin + n);
                last = Instant::now();
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => return false,
        }
        host.device.progress();
        sample();
        if sent >= FLOOD || last.elapsed() > STALL {
            return true;
        }
    }
}

/// Runs a flood, and checks the memory and the honest connection.
fn bounded(host: &Host, name: &str, run: impl FnOnce()) {
    bounded_by(BOUND, host, name, run);
}

fn bounded_by(bound: usize, host: &Host, name: &str, run: impl FnOnce()) {
    let before = allocated();
    PEAK.store(before, Ordering::Relaxed);
    run();
    sample();
    let grown = PEAK.load(Ordering::Relaxed).saturating_sub(before);
    println!("{name}: {} KiB", grown / 1024);
    assert!(grown <= bound, "{name}: {grown} bytes");
    host.check_honest();
}

fn part(msn: u32, last: bool) -> Untagged {
    Untagged {
        control: Control::new(OP_SEND, last),
        ..send(msn)
    }
}

/// A flood on an established connection that stays.
fn goes_on(host: &Host, name: &str, receives: bool, piece: impl FnMut(&mut Vec<u8>)) {
    let (mut peer, victim) = host.connected(&OFFER);
    if receives {
        victim.receive(&host.arena, 1, 0, 64);
    }
    bounded(host, name, || {
        assert!(
            flood(host, &mut peer, piece),
            "{name}: the connection has ended"
        );
    });
    assert!(victim.events.try_recv().is_err(), "{name}");
}

/// A flood that ends the connection.
fn ends(host: &Host, name: &str, piece: impl FnMut(&mut Vec<u8>)) {
    let (mut peer, victim) = host.connected(&OFFER);
    bounded(host, name, || {
        flood(host, &mut peer, piece);
    });
    let event = victim.events.recv_timeout(PATIENCE).unwrap();
    assert_eq!(event, CmEvent::Broken, "{name}");
}

/// Bytes that the peer has written and that our kernel has not acknowledged, and those that our kernel
/// has room for.
fn in_flight(peer: &TcpStream) -> (usize, usize) {
    // SAFETY: plain numbers.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut len = size_of_val(&info) as libc::socklen_t;
    let mut queued: libc::c_int = 0;
    let fd = peer.as_raw_fd();
    // SAFETY: valid places of that length for the results.
    unsafe {
        let at = (&raw mut info).cast();
        let got = libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, at, &mut len);
        assert_eq!(got, 0);
        assert_eq!(libc::ioctl(fd, libc::TIOCOUTQ, &mut queued), 0);
    }
    (queued as usize, info.tcpi_snd_wnd as usize)
}

/// A flood of so many messages without receives, each of some bytes, and the end of the stream behind it.
/// Then there are receives: every message arrives, and the connection ends in order.
fn ended(host: &Host, name: &str, count: u32, payload: usize) {
    let (mut peer, victim) = host.connected(&OFFER);
    // What is read at once makes the kernel offer the peer more room, with its next acknowledgement.
    let memory = vec![0; 60_000];
    let (at, len) = (memory.as_ptr() as u64, memory.len() as u64);
    let region = host.register(at, len);
    let write = tagged(OP_WRITE, region.rkey(), at, &memory);
    let begun = Instant::now();
    while in_flight(&peer).1 < ENDED + ENDED / 4 {
        for count in [16, 1] {
            peer.write_all(&write.repeat(count)).unwrap();
            while in_flight(&peer).0 > 0 {
                host.device.progress();
            }
        }
        let (_, room) = in_flight(&peer);
        assert!(begun.elapsed() < PATIENCE, "{name}: room for {room} bytes");
    }
    let mut bytes = Vec::new();
    for msn in 1..=count {
        bytes.extend(untagged(send(msn), &vec![7; payload]));
    }
    bounded_by(BOUND_ENDED, host, name, || {
        peer.write_all(&bytes).unwrap();
        peer.shutdown(Shutdown::Write).unwrap();
        let (begun, mut acknowledged) = (Instant::now(), None);
        while acknowledged.is_none_or(|when: Instant| when.elapsed() < STALL) {
            if acknowledged.is_none() && in_flight(&peer).0 == 0 {
                acknowledged = Some(Instant::now());
            }
            assert!(
                begun.elapsed() < PATIENCE,
                "{name}: the end does not arrive"
            );
            host.device.progress();
            sample();
        }
    });
    assert!(victim.events.try_recv().is_err(), "{name}");
    for i in 0..count {
        victim.receive(&host.arena, i.into(), 0, payload);
        let received = completion(&host.device, &victim.cq);
        assert_eq!(
            (received.wr_id, received.status),
            (i.into(), WcStatus::Success)
        );
        assert_eq!(received.byte_len as usize, payload, "{name}");
    }
    let event = victim.events.recv_timeout(PATIENCE).unwrap();
    assert_eq!(event, CmEvent::Disconnected, "{name}");
}

#[test]
fn floods_that_end() {
    let _one = ONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let limits = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_rmem").unwrap();
    let most: usize = limits.split_whitespace().last().unwrap().parse().unwrap();
    if most < 5 * ENDED {
        return skip::skip(&format!(
            "a socket holds no such flood: tcp_rmem is {limits}"
        ));
    }
    let host = Host::new("127.0.0.1 path=tcp");
    ended(&host, "empty sends, then the end", (ENDED / 24) as u32, 0);
    ended(
        &host,
        "sends of a byte, then the end",
        (ENDED / 28) as u32,
        1,
    );
    ended(&host, "short sends, then the end", (ENDED / 56) as u32, 32);
}

#[test]
fn floods() {
    let _one = ONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let host = Host::new("127.0.0.1 path=tcp");
    let many = |piece: Vec<u8>| {
        move |chunk: &mut Vec<u8>| {
            while chunk.len() < 1 << 16 {
                chunk.extend_from_slice(&piece);
            }
        }
    };
    let counted = |payload: usize| {
        let mut msn = 0u32;
        move |chunk: &mut Vec<u8>| {
            while chunk.len() < 1 << 16 {
                msn += 1;
                chunk.extend(untagged(send(msn), &vec![7; payload]));
            }
        }
    };
    goes_on(
        &host,
        "empty writes",
        false,
        many(tagged(OP_WRITE, 1, u64::MAX, b"")),
    );
    goes_on(
        &host,
        "empty segments of a send",
        true,
        many(untagged(part(1, false), b"")),
    );
    goes_on(
        &host,
        "the same without a receive",
        false,
        many(untagged(part(1, false), b"")),
    );
    goes_on(&host, "empty sends without a receive", false, counted(0));
    goes_on(
        &host,
        "sends of a byte without a receive",
        false,
        counted(1),
    );
    goes_on(
        &host,
        "long sends without a receive",
        false,
        counted(60_000),
    );

    // Reads whose answers are not taken. A peer that waits for none exceeds the depth soon.
    for size in [0, 8, 256] {
        let mut msn = 0;
        let (stag, to) = (
            host.arena.key(Region::Readable),
            host.arena.at(Region::Readable),
        );
        ends(&host, "read requests", |chunk| {
            for _ in 0..1000 {
                msn += 1;
                chunk.extend(read(msn, stag, to, size));
            }
        });
    }
    // After the end, and the Terminate is not read.
    ends(&host, "data after a violation", {
        let mut first = true;
        move |chunk| {
            if std::mem::take(&mut first) {
                chunk.extend(tagged(OP_WRITE, 1, 1, b"x"));
            }
            chunk.resize(1 << 16, 7);
        }
    });
    ends(&host, "zeros", |chunk| chunk.resize(1 << 16, 0));

    // An FPDU of the longest length that never ends.
    let (mut peer, _victim) = host.connected(&OFFER);
    bounded(&host, "half an FPDU", || {
        let header = Tagged {
            control: Control::new(OP_WRITE, true),
            stag: host.arena.key(Region::All),
            to: host.arena.at(Region::All),
        };
        let whole = tagged_as(header, &vec![7; ULPDU_MAX - 14]);
        peer.write_all(&whole[..whole.len() - 1]).unwrap();
        let end = Instant::now() + STALL;
        while Instant::now() < end {
            host.device.progress();
            sample();
        }
    });

    // Responses without bytes to a read that stays open.
    let (mut peer, victim) = host.connected(&OFFER);
    victim.read(&host.arena, 2, 0);
    receive_read_request(&mut peer);
    bounded(&host, "empty responses", || {
        let control = Control::new(OP_READ_RESPONSE, false);
        let empty = Tagged {
            control,
            stag: 0,
            to: 0,
        };
        assert!(flood(&host, &mut peer, many(tagged_as(empty, b""))));
    });
}

/// Before a connection is established.
#[test]
fn floods_of_requests() {
    let _one = ONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let host = Host::new("127.0.0.1 path=tcp");
    let request = mpa_bytes(&OFFER.request(2, &[7; 500]));
    // Many requests that are whole but for a byte. Each has a state, and 520 bytes at most.
    let mut peers = Vec::with_capacity(64);
    bounded(&host, "64 requests that do not end", || {
        for _ in 0..64 {
            let mut peer = dial(host.port);
            peer.write_all(&request[..request.len() - 1]).unwrap();
            peers.push(peer);
            host.device.progress();
        }
    });
    drop(peers);
    // Data behind a request that the program does not answer: it stays in the kernel.
    let mut peer = dial(host.port);
    peer.write_all(&request).unwrap();
    let waiting = host.requests.recv_timeout(PATIENCE).unwrap();
    bounded(&host, "data behind a request", || {
        assert!(flood(&host, &mut peer, |chunk| chunk.resize(1 << 16, 7)));
    });
    host.device.reject(waiting, b"");
    // A request with a length that is too long, and private data for ever.
    let mut peer = dial(host.port);
    let mut long = request;
    long[18..20].copy_from_slice(&[0xff, 0xff]);
    peer.write_all(&long).unwrap();
    bounded(&host, "private data without end", || {
        assert!(!flood(&host, &mut peer, |chunk| chunk.resize(1 << 16, 7)));
    });
}

/// A peer on this host that connects, states that it copies, and leaves, again and again.
#[test]
fn copies_without_end() {
    let _one = ONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let host = Host::new("127.0.0.1 path=shm");
    let segments = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines()
            .filter(|line| line.contains("memfd:peer"))
            .count()
    };
    for _ in 0..300 {
        connection_properties::shm::endless_copy(&host);
    }
    host.check_honest();
    let mapped = segments();
    // The keys, states and bits of a peer, and a segment for each connection that is remembered.
    assert!(mapped <= 4 * 130, "{mapped} files of peers are mapped");
}
