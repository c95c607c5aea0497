//! Attempts to connect to processes of this host that are slow, silent, or have no room.

use std::net::{Ipv4Addr, TcpListener};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::raw::LOCAL;
use super::shm_peer::{ShmPeer, call, device, patiently, target};
use super::*;
use crate::descriptor::OwnedFd;
use crate::device::qualifier;
use crate::device::soft::iwarp::mpa::FRAME_MAX;
use crate::device::soft::transport::shm::{
    self, ActiveHandshake, BUSY, EndAddresses, Incomplete, Purpose,
};

/// Bytes of the first message of an end.
const HELLO_LEN: usize = 72;
/// What a message begins with by which a connection is dropped for want of room.
const DROPPED: &[u8; 8] = b"libdat d";

/// A process that holds the local name of a port, and does not answer.
struct Silent {
    local: OwnedFd,
    /// Nobody else has the port.
    _tcp: TcpListener,
    port: u16,
}

impl Silent {
    /// At any port.
    fn new() -> Silent {
        Silent::on(0).unwrap()
    }

    fn on(port: u16) -> Option<Silent> {
        let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok()?;
        let port = tcp.local_addr().unwrap().port();
        let local = shm::listen(Some(target(port.into())), port).ok()?;
        Some(Silent {
            local,
            _tcp: tcp,
            port,
        })
    }

    /// The next connection, on which a hello has arrived.
    fn next(&self) -> OwnedFd {
        let socket = patiently(|| rustix::net::accept(&self.local))
            .unwrap()
            .into();
        assert_eq!(read(&socket).len(), HELLO_LEN);
        socket
    }

    /// Whether nobody connects for a moment.
    fn is_left_alone(&self) -> bool {
        std::thread::sleep(Duration::from_millis(100));
        rustix::net::accept(&self.local).is_err()
    }
}

/// What arrives next on a socket; nothing at the end of the stream.
fn read(socket: &OwnedFd) -> Vec<u8> {
    let mut bytes = [0; 200];
    match patiently(|| rustix::net::recv(socket, &mut bytes, RecvFlags::DONTWAIT)) {
        Ok((_, n)) => bytes[..n].to_vec(),
        Err(_) => Vec::new(),
    }
}

fn connect(a: &End, qual: u64, timeout: Duration) {
    let connected = a.device.connect(&a.qp, target(0), qual, Some(timeout), b"");
    assert_eq!(connected, Ok(()));
}

/// Who waits too long for its turn is told so, and may come back. Not so who has completed the handshake.
#[test]
fn dropped_for_others() {
    alone("shm_attempts::dropped_for_others", crowd);
}

fn crowd() {
    /// As many connections as there may be without a request, and one more, of one descriptor each.
    const CROWD: usize = 101;
    let device = device();
    let (server, qual) = Server::any(&device);
    let verified = ShmPeer::connect(qual);
    let slow = call(qual);
    let ends = EndAddresses {
        source: target(0),
        target: target(qual),
    };
    let mut handshake = ActiveHandshake::send(&slow, &ends, Purpose::Connection, false).unwrap();
    let mut hello = [0; HELLO_LEN];
    let peek = || rustix::net::recv(&slow, &mut hello, RecvFlags::DONTWAIT | RecvFlags::PEEK);
    assert_eq!(patiently(peek).unwrap().1, HELLO_LEN);
    // No longer than others are given.
    std::thread::sleep(Duration::from_millis(1100));
    let silent: Vec<OwnedFd> = (0..CROWD).map(|_| call(qual)).collect();
    let message = read(&silent[0]);
    assert_eq!((&message[..8], message.len()), (&DROPPED[..], HELLO_LEN));
    assert_eq!(read(&silent[0]), b"");
    let refused = patiently(|| match handshake.advance(&slow, || ()) {
        Err(Incomplete::Verifying) => Err(Errno::AGAIN),
        other => Ok(other.err()),
    });
    assert_eq!(refused, Ok(Some(Incomplete::Refused(BUSY))));
    let mut bytes = [0; FRAME_MAX];
    verified.send(LOCAL.request(2, b"me").encode(&mut bytes).unwrap());
    assert_eq!(server.next().private_data(), b"me");
}

/// An attempt that a process has no room for asks again, for longer than one that finds no listener.
#[test]
fn comes_back_when_dropped() {
    const TIMES: usize = 12;
    let holder = Silent::new();
    let a = End::new(&device(), attr());
    connect(&a, holder.port.into(), PATIENCE);
    let mut message = [0; HELLO_LEN];
    message[..8].copy_from_slice(DROPPED);
    for _ in 0..TIMES {
        let socket = holder.next();
        a.no_event();
        rustix::net::send(&socket, &message, SendFlags::NOSIGNAL).unwrap();
    }
    // That is final.
    drop(holder.next());
    drop(holder);
    assert_eq!(a.event(), CmEvent::NonPeerRejected);
}

/// Where nothing else can be tried, an attempt waits as long as its consumer wants.
#[test]
fn waits_for_a_process_that_is_slow() {
    let holder = Silent::new();
    let a = End::new(&device(), attr());
    connect(&a, holder.port.into(), Duration::from_millis(2500));
    let _socket = holder.next();
    assert!(holder.is_left_alone());
    assert_eq!(a.event(), CmEvent::TimedOut);
    assert!(holder.is_left_alone());
}

/// A wide qualifier whose first port is held by such a process.
fn wide() -> (Silent, u64) {
    let base = u64::from(std::process::id()) << 40 | 6 << 35;
    let held = (base..).take(100).find_map(|qual| {
        let first = qualifier::candidates(qual).next()?;
        Some((Silent::on(first)?, qual))
    });
    held.unwrap()
}

/// The others of its ports are tried meanwhile.
#[test]
fn goes_by_a_process_that_is_silent() {
    let (holder, qual) = wide();
    let device = device();
    let server = Server::on(&device, qual).unwrap();
    let (a, b) = (End::new(&device, attr()), End::new(&device, attr()));
    connect(&a, qual, PATIENCE);
    let _socket = holder.next();
    device.accept(server.next(), &b.qp, b"").unwrap();
    assert_eq!(a.event(), established(b""));
    assert_eq!(b.event(), established(b""));
}

/// If there is no other, it may have the listener.
#[test]
fn comes_back_to_a_process_that_was_silent() {
    let (holder, qual) = wide();
    let a = End::new(&device(), attr());
    connect(&a, qual, Duration::from_secs(2));
    let _first = holder.next();
    let _second = holder.next();
    a.no_event();
    assert_eq!(a.event(), CmEvent::TimedOut);
}

/// The attempts of a device do not fill the queue of a process. Who has waited longest is the next one.
#[test]
fn takes_turns() {
    const AT_A_TIME: usize = 4;
    let holder = Silent::new();
    let device = device();
    let ends: Vec<End> = (0..3 * AT_A_TIME)
        .map(|_| End::new(&device, attr()))
        .collect();
    for a in &ends {
        connect(a, holder.port.into(), PATIENCE);
    }
    let mut sockets: Vec<OwnedFd> = (0..AT_A_TIME).map(|_| holder.next()).collect();
    assert!(holder.is_left_alone());
    // One that waits, and one that does not.
    ends[AT_A_TIME].qp.disconnect(false);
    ends[0].qp.disconnect(false);
    sockets.push(holder.next());
    assert!(holder.is_left_alone());
    // Who has been refused lets the others in, after having asked again.
    let refused = holder.port.into();
    drop(holder);
    drop(sockets);
    for (n, a) in ends.iter().enumerate() {
        if ![0, AT_A_TIME].contains(&n) {
            assert_eq!(a.event(), CmEvent::NonPeerRejected, "{n}");
        }
    }
    let server = Server::on(&device, refused).unwrap();
    let (a, b) = (End::new(&device, attr()), End::new(&device, attr()));
    connect(&a, refused, PATIENCE);
    device.accept(server.next(), &b.qp, b"").unwrap();
    assert_eq!(a.event(), established(b""));
}
