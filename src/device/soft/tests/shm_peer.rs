//! Peers of this host that share memory with us, and do with it what they like.

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::raw::{self, LOCAL, Raw};
use super::*;
use crate::descriptor::OwnedFd;
use crate::device::soft::engine::ready_bitmap::BitmapPlace;
use crate::device::soft::iwarp::mpa::{self, FRAME_MAX, Kind, Parsed};
use crate::device::soft::transport::shm::ring::{CellFlags, Kind as CellKind, Producer};
use crate::device::soft::transport::shm::{
    self, ActiveHandshake, EndAddresses, EndPhase, Incomplete, Purpose, SharedSegment,
};

/// Such a peer, as the initiator.
pub(super) struct ShmPeer {
    socket: OwnedFd,
    pub(super) segment: Arc<SharedSegment>,
}

/// Repeats what would block.
pub(super) fn patiently<T>(mut f: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    let end = Instant::now() + PATIENCE;
    loop {
        match f() {
            Err(Errno::AGAIN) if Instant::now() < end => {
                std::thread::sleep(Duration::from_micros(100));
            }
            result => return result,
        }
    }
}

pub(super) fn target(qual: u64) -> SocketAddr {
    SocketAddr::new([127, 0, 0, 1].into(), qual as u16)
}

/// A socket to whoever has the port.
pub(super) fn call(qual: u64) -> OwnedFd {
    shm::connect(target(qual))
        .unwrap()
        .expect("somebody listens")
}

impl ShmPeer {
    pub(super) fn connect(qual: u64) -> ShmPeer {
        Self::connect_for(Purpose::Connection, qual)
    }

    /// The same for what memory is to be shared for.
    pub(super) fn connect_for(purpose: Purpose, qual: u64) -> ShmPeer {
        let socket = call(qual);
        let ends = EndAddresses {
            source: target(0),
            target: target(qual),
        };
        let mut offer = ActiveHandshake::send(&socket, &ends, purpose, false).unwrap();
        let segment = patiently(|| match offer.advance(&socket, || ()) {
            Ok(segment) => segment.ok_or(Errno::AGAIN),
            Err(Incomplete::AwaitingPeer | Incomplete::Verifying) => Err(Errno::AGAIN),
            Err(Incomplete::Refused(why)) => panic!("{why}"),
        });
        let segment = segment.unwrap();
        ShmPeer { socket, segment }
    }

    pub(super) fn send(&self, bytes: &[u8]) {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        // The other end may be closed.
        let _ = rustix::net::send(&self.socket, bytes, flags);
    }

    /// Notifies the other end of what is in the ring, as a peer in order.
    pub(super) fn notify(&self) {
        self.set_ready_bit();
        self.send(b"!");
    }

    /// Sets the ready bit of the other end, if that has one.
    pub(super) fn set_ready_bit(&self) {
        let place = self.segment.theirs().bitmap_place();
        if place != BitmapPlace::NONE {
            self.segment.peer().bitmaps().set(place);
        }
    }

    /// The private data of the reply, which accepts.
    pub(super) fn accepted(&self) -> Vec<u8> {
        let mut reply = [0; FRAME_MAX];
        let read = || rustix::net::recv(&self.socket, &mut reply, RecvFlags::DONTWAIT);
        let (_, n) = patiently(read).unwrap();
        match mpa::parse(Kind::Reply, &reply[..n]) {
            Ok(Parsed::Frame(frame, _)) if !frame.reject => frame.private_data.to_vec(),
            other => panic!("{other:?}"),
        }
    }

    /// Waits for the end of the stream.
    pub(super) fn socket_ended(&self) -> bool {
        let mut bytes = [0; 256];
        let read = || rustix::net::recv(&self.socket, &mut bytes, RecvFlags::DONTWAIT);
        let mut read = read;
        loop {
            match patiently(&mut read) {
                Ok((_, 0)) | Err(Errno::CONNRESET) => return true,
                Ok(_) => {}
                Err(_) => return false,
            }
        }
    }
}

/// A peer made by hand that `b` has accepted.
pub(super) fn initiate(b: &End) -> ShmPeer {
    let device = &b.device;
    let (server, qual) = Server::any(device);
    let peer = ShmPeer::connect(qual);
    let mut bytes = [0; FRAME_MAX];
    peer.send(LOCAL.request(2, b"").encode(&mut bytes).unwrap());
    device.accept(server.next(), &b.qp, b"").unwrap();
    peer.accepted();
    peer.segment.ours().set_phase(EndPhase::Open);
    peer
}

/// A peer made by hand that is connected to an end of ours.
pub(super) fn connected(device: &Arc<Soft>) -> (ShmPeer, End) {
    let b = End::new(device, attr());
    let peer = initiate(&b);
    b.no_event();
    peer.send(b"!");
    assert_eq!(b.event(), established(b""));
    (peer, b)
}

pub(super) fn device() -> Arc<Soft> {
    Soft::open("127.0.0.1 path=shm").unwrap()
}

pub(super) fn over(b: &End) {
    let event = b.event();
    assert!(
        matches!(event, CmEvent::Broken | CmEvent::Disconnected),
        "{event:?}"
    );
    assert_eq!((b.qp.send_outstanding(), b.qp.recv_outstanding()), (0, 0));
}

/// Whatever is in the memory, the connection goes on or ends, and everything that was posted
/// completes.
#[test]
fn garbage_in_the_memory() {
    let device = device();
    for seed in 0..100u64 {
        let (peer, b) = connected(&device);
        for i in 0..8 {
            b.recv(i, &[b.sge(0, 1000)]).unwrap();
        }
        peer.segment.corrupt(seed);
        peer.send(b"!");
        let remote = Remote { addr: 1, rkey: 1 };
        for op in [
            SendOp::Send,
            SendOp::RdmaWrite(remote),
            SendOp::RdmaRead { remote, len: 8 },
        ] {
            // The connection may be over already.
            let _ = b.post(9, op, &[b.sge(0, 100_000)]);
        }
        device.progress();
        doze(&device);
        if seed % 2 == 0 {
            drop(peer);
        } else {
            b.qp.disconnect(false);
        }
        over(&b);
    }
}

#[test]
fn bells_without_end() {
    let device = device();
    let (peer, b) = connected(&device);
    b.recv(1, &[]).unwrap();
    for _ in 0..20_000 {
        peer.send(&[0; 100]);
    }
    assert_eq!(b.qp.recv_outstanding(), 1);
    // Others are served meanwhile.
    let (c, d) = Net {
        active: device.clone(),
        passive: device.clone(),
        loopback: false,
    }
    .pair();
    d.recv(1, &[]).unwrap();
    c.post(1, SendOp::Send, &[]).unwrap();
    assert_eq!(d.received_as(), (1, WcStatus::Success));
    drop(peer);
    over(&b);
}

/// Connections to the local socket that do not follow the handshake.
#[test]
fn strangers() {
    let device = device();
    let (server, qual) = Server::any(&device);
    // Sends nothing and closes.
    drop(call(qual));
    // Sends something else than a hello.
    let socket = call(qual);
    let peer = ShmPeer::connect(qual);
    rustix::net::send(&socket, &[7; 500], SendFlags::NOSIGNAL).unwrap();
    let mut rest = [0; 16];
    let read = patiently(|| rustix::net::recv(&socket, &mut rest, RecvFlags::DONTWAIT));
    assert!(matches!(read, Ok((_, 0)) | Err(Errno::CONNRESET)));
    // Completes the handshake, then sends something else than an MPA request.
    peer.send(b"GET / HTTP/1.0\r\n\r\n");
    assert!(peer.socket_ended());
    assert!(server.requests.try_recv().is_err());
    let (peer, b) = connected(&device);
    b.qp.disconnect(true);
    until(|| peer.segment.theirs().phase() == EndPhase::Closed);
    peer.segment.ours().set_phase(EndPhase::Closed);
    drop(peer);
    assert_eq!(b.event(), CmEvent::Disconnected);
    let (peer, b) = connected(&device);
    b.qp.disconnect(false);
    assert!(peer.socket_ended());
    assert_eq!(peer.segment.theirs().phase(), EndPhase::Aborted);
}

/// Of connections that send nothing the oldest are closed, and no others.
#[test]
fn a_flood_of_silent_connections() {
    alone("shm_peer::a_flood_of_silent_connections", silence);
}

fn silence() {
    let device = device();
    let (server, qual) = Server::any(&device);
    let silent: Vec<OwnedFd> = (0..101).map(|_| call(qual)).collect();
    let peer = ShmPeer::connect(qual);
    let mut bytes = [0; FRAME_MAX];
    peer.send(LOCAL.request(2, b"me").encode(&mut bytes).unwrap());
    assert_eq!(server.next().private_data(), b"me");
    let mut rest = [0; 16];
    // It is told why.
    let end = loop {
        match patiently(|| rustix::net::recv(&silent[0], &mut rest, RecvFlags::DONTWAIT)) {
            Ok((_, n)) if n > 0 => {}
            end => break end,
        }
    };
    assert!(matches!(end, Ok((_, 0)) | Err(Errno::CONNRESET)));
}

/// A peer that is established, sends a message and ends the connection before the thread goes on that accepts.
#[test]
fn ended_before_the_accept_returns() {
    let device = device();
    let b = End::new(&device, attr());
    b.recv(1, &[b.sge(0, 8)]).unwrap();
    let (server, qual) = Server::any(&device);
    let peer = ShmPeer::connect(qual);
    let mut bytes = [0; FRAME_MAX];
    peer.send(LOCAL.request(2, b"").encode(&mut bytes).unwrap());
    let request = server.next();
    // As soon as it has the reply: what it does is there when the accepting thread goes on.
    peer.send(b"!");
    let (mut producer, ring) = (Producer::default(), peer.segment.tx_ring());
    let fill = |_: *mut u8| Ok::<_, ()>(());
    let pushed = producer.push(ring, CellKind::Inline, CellFlags::LAST, 8, fill);
    pushed.unwrap();
    peer.segment.ours().set_phase(EndPhase::Closed);
    peer.send(b"!");
    device.accept(request, &b.qp, b"").unwrap();
    assert_eq!(b.event(), established(b""));
    assert_eq!(b.received_as(), (1, WcStatus::Success));
    drop(peer);
    assert_eq!(b.event(), CmEvent::Disconnected);
}

/// A peer that breaks off before it is established.
#[test]
fn accepted_and_gone() {
    let device = device();
    let (server, qual) = Server::any(&device);
    let peer = ShmPeer::connect(qual);
    let mut bytes = [0; FRAME_MAX];
    peer.send(LOCAL.request(2, b"").encode(&mut bytes).unwrap());
    let b = End::new(&device, attr());
    b.recv(1, &[]).unwrap();
    device.accept(server.next(), &b.qp, b"").unwrap();
    drop(peer);
    assert_eq!(b.event(), CmEvent::AcceptError);
    assert_eq!(b.received_as(), (1, WcStatus::Flushed));
}

/// As over TCP: if a peer ends its first connection when its others are established, over either
/// path, the events have that order.
#[test]
fn an_end_is_reported_after_what_preceded_it() {
    let device = device();
    for state in [EndPhase::Closed, EndPhase::Broken] {
        let (first, a) = connected(&device);
        let ends = |n| (0..n).map(|_| End::new(&device, attr()));
        let peer: Vec<(ShmPeer, End)> = ends(50).map(|b| (initiate(&b), b)).collect();
        let mut raw: Vec<(Raw, End)> = ends(50).map(|b| (raw::initiate(&b, 2), b)).collect();
        let pause = device.engine.pause();
        first.segment.ours().set_phase(state);
        drop(first);
        peer.iter().for_each(|(peer, _)| peer.send(b"!"));
        raw.iter_mut().for_each(|(raw, _)| raw.send(&raw::rtr()));
        drop(pause);
        assert_eq!(
            a.event(),
            match state {
                EndPhase::Closed => CmEvent::Disconnected,
                _ => CmEvent::Broken,
            }
        );
        let others = peer
            .iter()
            .map(|(_, b)| b)
            .chain(raw.iter().map(|(_, b)| b));
        for b in others {
            assert_eq!(b.events.try_recv(), Ok(established(b"")));
        }
    }
}

/// A program may end the connection and exit while the thread that has given it the event of the connection
/// has not gone on: the end is told to the peer at once.
#[test]
fn a_graceful_end_that_overtakes_the_beginning() {
    let device = device();
    let b = End::new(&device, attr());
    let hold = b.hold.lock();
    let peer = initiate(&b);
    peer.send(b"!");
    assert_eq!(b.event(), established(b""));
    b.post(1, SendOp::Send, &[b.sge(0, 8)]).unwrap();
    assert_eq!(b.sent_as(), (1, WcStatus::Success));
    b.qp.disconnect(true);
    let phase = || peer.segment.theirs().phase();
    assert_eq!(phase(), EndPhase::Closed);
    drop(hold);
    doze(&device);
    assert_eq!(phase(), EndPhase::Closed);
    peer.segment.ours().set_phase(EndPhase::Closed);
    drop(peer);
    assert_eq!(b.event(), CmEvent::Disconnected);
}

/// The end of a connection over TCP waits for one through shared memory.
#[test]
fn an_end_over_tcp_is_told_after_what_came_before_it() {
    let device = device();
    let a = End::new(&device, attr());
    let mut first = raw::initiate(&a, 2);
    first.send(&raw::rtr());
    assert_eq!(a.event(), established(b""));
    let others: Vec<(ShmPeer, End)> = (0..100)
        .map(|_| {
            let b = End::new(&device, attr());
            (initiate(&b), b)
        })
        .collect();
    let pause = device.engine.pause();
    drop(first);
    others.iter().for_each(|(peer, _)| peer.send(b"!"));
    drop(pause);
    assert_eq!(a.event(), CmEvent::Disconnected);
    for (_, b) in &others {
        assert_eq!(b.events.try_recv(), Ok(established(b"")));
    }
}
