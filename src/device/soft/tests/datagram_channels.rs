//! Datagrams through shared memory, and peers of this host that do with it what they like.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, AtomicU64};

use super::datagrams::{end, resolve};
use super::raw::LOCAL;
use super::shm_peer::{ShmPeer, device, patiently};
use super::shm_words::{values, words};
use super::*;
use crate::device::soft::iwarp::mpa::{FRAME_MAX, Kind as Frames, Parsed, parse};
use crate::device::soft::transport;
use crate::device::soft::transport::datagram::port::Port;
use crate::device::soft::transport::datagram::wire::{self, MAX_DATAGRAM, Route};
use crate::device::soft::transport::shm::ring::{
    Assembly, CELLS, CellFlags, Consumer, Kind, Producer,
};
use crate::device::soft::transport::shm::{self, Purpose};
use crate::device::{AddressHandle, DATAGRAM_HEADER_LEN};

const HEADER: usize = DATAGRAM_HEADER_LEN as usize;

fn port(end: &End) -> Arc<Port> {
    transport::datagram_end(&end.qp).unwrap().port().clone()
}

/// Two ends that have resolved each other through shared memory.
fn pair() -> (End, End, Arc<dyn AddressHandle>) {
    let (a, b) = (end(&device()), end(&device()));
    let to = resolve(&a, &b);
    (a, b, to)
}

/// One datagram from `a` arrives at `b`.
fn check(a: &End, b: &End, to: &Arc<dyn AddressHandle>, len: usize) {
    let bytes = pattern(len, len as u8);
    a.fill(0, &bytes);
    b.recv(77, &[b.sge(0, HEADER + len)]).unwrap();
    a.send_to(to, len).unwrap();
    assert_eq!(b.received_as(), (77, WcStatus::Success));
    assert_eq!(a.sent_as(), (len as u64, WcStatus::Success));
    assert_eq!(b.bytes(HEADER, len), bytes);
}

/// A peer made by hand that asks and is accepted by `b`: also where `b` finds the peer, and what `b`
/// has said of itself.
fn by_hand(b: &End) -> (ShmPeer, Arc<dyn AddressHandle>, wire::End) {
    by_hand_at(b, 9)
}

/// The same for a peer with this UDP port.
fn by_hand_at(b: &End, port: u16) -> (ShmPeer, Arc<dyn AddressHandle>, wire::End) {
    static KEY: AtomicU64 = AtomicU64::new(1);
    let (server, qual) = Server::any(&b.device);
    let peer = ShmPeer::connect_for(Purpose::Datagrams, qual);
    let own = wire::End {
        qp_number: 7,
        port,
        key: KEY.fetch_add(1, Ordering::Relaxed),
        shares: false,
    };
    let mut bytes = [0; FRAME_MAX];
    let private_data = own.add_to(b"hello");
    let request = LOCAL.request(2, &private_data);
    peer.send(request.encode(&mut bytes).unwrap());
    let request = server.next();
    assert!(request.is_for_datagrams());
    assert_eq!(request.private_data(), b"hello");
    b.device.accept(request, &b.qp, b"welcome").unwrap();
    let (end, rest) = wire::End::split_from(&peer.accepted())
        .map(|(end, rest)| (end, rest.to_vec()))
        .unwrap();
    assert_eq!(rest, b"welcome");
    assert!(end.shares);
    (peer, b.resolved().to, end)
}

/// A message of a ring to that end.
fn message(end: wire::End, payload: &[u8]) -> Vec<u8> {
    let route = Route {
        receiver: end.qp_number,
        sender: 7,
        key: end.key,
        solicited: false,
    };
    [&route.ring_header()[..], payload].concat()
}

/// Puts a message into the ring of a peer, and wakes the other end.
fn put(peer: &ShmPeer, producer: &mut Producer, message: &[u8]) -> bool {
    let (ring, flags) = (peer.segment.tx_ring(), CellFlags::empty());
    let put = producer.push_whole(ring, flags, message).unwrap();
    peer.send(b"!");
    put
}

/// Ports that have a channel use it for all their queue pairs, whoever asks, and it ends with either.
#[test]
fn two_ports_have_one_channel() {
    let (a, b, to) = pair();
    let (c, d) = (end(&a.device), end(&b.device));
    let ports = (port(&a), port(&b));
    let channels = || (ports.0.channels().len(), ports.1.channels().len());
    until(|| channels() == (1, 1));
    let back = resolve(&b, &a);
    let other = resolve(&c, &d);
    assert_eq!(channels(), (1, 1));
    for len in [0, 1, 48, 49, 1000, MAX_DATAGRAM] {
        check(&a, &b, &to, len);
        check(&b, &a, &back, len);
        check(&c, &d, &other, len);
    }
    // The handle is good for all endpoints of the interface adapter.
    check(&a, &d, &other, 9);
    let open = ports.0;
    drop((b, d, ports.1));
    until(|| open.channels().len() == 0);
    // Nothing else leads there.
    a.send_to(&to, 5).unwrap();
    assert_eq!(a.sent_as(), (5, WcStatus::Success));
    a.idle();
}

/// Both ends ask at the same time.
#[test]
fn questions_that_cross() {
    let (a, b) = (end(&device()), end(&device()));
    let ((at_a, to_a), (at_b, to_b)) = (Server::any(&a.device), Server::any(&b.device));
    a.connect(to_b, b"").unwrap();
    b.connect(to_a, b"").unwrap();
    let requests = (at_a.next(), at_b.next());
    a.device.accept(requests.0, &a.qp, b"").unwrap();
    b.device.accept(requests.1, &b.qp, b"").unwrap();
    for (end, other) in [(&a, &b), (&b, &a)] {
        for _ in 0..2 {
            check(end, other, &end.resolved().to, 10);
        }
    }
}

/// What is sent while nobody polls arrives by the doorbell, all of it, however fast it comes.
#[test]
fn nothing_in_the_ring_is_forgotten() {
    const MANY: usize = 5000;
    let device = device();
    let attr = QpAttr {
        max_recv_wr: MANY as u32,
        datagrams: true,
        ..attr()
    };
    let b = End::new(&device, attr);
    for i in 0..MANY {
        b.recv(i as u64, &[b.sge(0, HEADER + 8)]).unwrap();
    }
    let (peer, _, to) = by_hand(&b);
    doze(&device);
    let mut producer = Producer::default();
    for i in 0..MANY {
        let message = message(to, &(i as u64).to_ne_bytes());
        let ring = peer.segment.tx_ring();
        while !producer
            .push_whole(ring, CellFlags::empty(), &message)
            .unwrap()
        {
            std::thread::yield_now();
        }
        if peer
            .segment
            .theirs()
            .doorbell
            .is_due(shm::doorbell::WakeOn::CELLS)
        {
            peer.send(b"!");
        }
    }
    until(|| b.qp.recv_outstanding() == 0);
}

/// What a peer has sent before its end arrives.
#[test]
fn a_full_ring_of_a_peer_that_has_ended() {
    let device = device();
    let attr = QpAttr {
        max_recv_wr: CELLS as u32,
        datagrams: true,
        ..attr()
    };
    let b = End::new(&device, attr);
    for i in 0..CELLS {
        b.recv(i as u64, &[b.sge(0, HEADER + 8)]).unwrap();
    }
    let (peer, _, to) = by_hand(&b);
    let pause = device.engine.pause();
    let mut producer = Producer::default();
    let message = message(to, b"12345678");
    let ring = peer.segment.tx_ring();
    while producer
        .push_whole(ring, CellFlags::empty(), &message)
        .unwrap()
    {}
    drop(peer);
    drop(pause);
    until(|| b.qp.recv_outstanding() == 0);
    until(|| port(&b).channels().len() == 0);
}

/// A peer that sends without end delays nobody for long.
#[test]
fn a_flood() {
    let device = device();
    let b = end(&device);
    let (peer, _, to) = by_hand(&b);
    let stop = AtomicBool::new(false);
    let (c, d) = (end(&device), end(&device));
    let way = resolve(&c, &d);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut producer = Producer::default();
            let message = message(to, &[0; 32]);
            while !stop.load(Ordering::Relaxed) {
                put(&peer, &mut producer, &message);
            }
        });
        for i in 0..100 {
            check(&c, &d, &way, i);
        }
        doze(&device);
        d.recv(1, &[d.sge(0, 100)]).unwrap();
        c.send_to(&way, 1).unwrap();
        until(|| d.qp.recv_outstanding() == 0);
        stop.store(true, Ordering::Relaxed);
    });
}

/// A peer that takes nothing costs one wait. What has room arrives once the peer goes on, and nothing else.
#[test]
fn a_receiver_that_has_stopped() {
    let b = end(&device());
    let (peer, to, _) = by_hand(&b);
    let begin = Instant::now();
    for _ in 0..40 * CELLS {
        b.send_to(&to, 8).unwrap();
        assert_eq!(b.sent_as(), (8, WcStatus::Success));
    }
    // At five milliseconds for each that is lost these would be 25 seconds.
    assert!(begin.elapsed() < Duration::from_secs(10));
    let (mut consumer, mut assembly) = (Consumer::default(), Assembly::new(0, 100));
    let ring = peer.segment.rx_ring();
    let mut take = || {
        let message = assembly.take(&mut consumer, ring).unwrap();
        let len = message.map(|(message, _)| message.len());
        consumer.publish(ring);
        len
    };
    for _ in 0..CELLS {
        assert_eq!(take(), Some(16));
    }
    assert_eq!(take(), None);
    b.send_to(&to, 3).unwrap();
    assert_eq!(take(), Some(11));
}

/// What is no message ends the channel of that peer alone; what has no receiver is dropped.
#[test]
fn messages_that_are_none() {
    let device = device();
    let b = end(&device);
    let (c, d) = (end(&device), end(&device));
    let way = resolve(&c, &d);
    let long = vec![0; MAX_DATAGRAM + 9];
    let other = |end: wire::End| wire::End {
        qp_number: end.qp_number ^ 1,
        ..end
    };
    type Put<'a> = &'a dyn Fn(&ShmPeer, &mut Producer, wire::End);
    let cell = |peer: &ShmPeer, producer: &mut Producer, kind, flags, len| {
        let ring = peer.segment.tx_ring();
        let _ = producer.push(ring, kind, flags, len, |_| Ok::<_, ()>(()));
        peer.send(b"!");
    };
    let last = CellFlags::LAST;
    let wrong: [Put<'_>; 8] = [
        // Without a whole header, and none at all.
        &|peer, producer, _| cell(peer, producer, Kind::Inline, last, 7),
        &|peer, producer, _| cell(peer, producer, Kind::Inline, last, 0),
        // Longer than any.
        &|peer, producer, _| cell(peer, producer, Kind::Bulk, last, 8 + MAX_DATAGRAM + 1),
        &|peer, producer, _| assert!(put(peer, producer, &long)),
        // In parts that never end.
        &|peer, producer, _| {
            // As many as have room.
            for _ in 0..CELLS - 1 {
                cell(peer, producer, Kind::Inline, CellFlags::empty(), 56);
            }
        },
        // What only connections have.
        &|peer, producer, _| cell(peer, producer, Kind::Invalidate, last, 4),
        &|peer, producer, _| cell(peer, producer, Kind::Offer, last, 24),
        &|peer, producer, _| cell(peer, producer, Kind::Atomic, last, 32),
    ];
    b.recv(1, &[b.sge(0, BUFFER / 2)]).unwrap();
    let before = port(&b).channels().len();
    for wrong in wrong {
        let (peer, to, end) = by_hand(&b);
        let mut producer = Producer::default();
        // Dropped, and no offence.
        assert!(put(
            &peer,
            &mut producer,
            &message(other(end), b"to nobody")
        ));
        wrong(&peer, &mut producer, end);
        assert!(peer.socket_ended());
        assert_eq!(b.qp.recv_outstanding(), 1);
        until(|| port(&b).channels().len() == before);
        b.send_to(&to, 1).unwrap();
        assert_eq!(b.sent_as(), (1, WcStatus::Success));
        check(&c, &d, &way, 100);
    }
    let (peer, _, end) = by_hand(&b);
    put(&peer, &mut Producer::default(), &message(end, b"right"));
    assert_eq!(b.received_as(), (1, WcStatus::Success));
    assert_eq!(b.bytes(HEADER, 5), b"right");
}

/// Every word that has a meaning with every extreme value, and noise everywhere, while datagrams go both
/// ways.
#[test]
fn garbage_in_the_memory() {
    let device = device();
    let b = end(&device);
    let (c, d) = (end(&device), end(&device));
    let way = resolve(&c, &d);
    let beyond = vec![0x77; 4096];
    b.fill(HEADER + 64, &beyond);
    let corrupt = |write: &dyn Fn(&ShmPeer)| {
        let (peer, to, end) = by_hand(&b);
        let mut producer = Producer::default();
        let _ = b.recv(1, &[b.sge(0, HEADER + 64)]);
        put(&peer, &mut producer, &message(end, b"first"));
        b.send_to(&to, 60).unwrap();
        write(&peer);
        peer.send(b"!");
        for _ in 0..3 {
            b.send_to(&to, 60).unwrap();
        }
        device.progress();
        drop(peer);
        while b.send_cq.poll().is_some() || b.recv_cq.poll().is_some() {}
        assert_eq!(b.bytes(HEADER + 64, 4096), beyond);
    };
    for (name, at) in words() {
        let word = |peer: &ShmPeer| peer.segment.words()[at / 8].load(Ordering::Relaxed);
        let count = values(0).len();
        for i in 0..count {
            corrupt(&|peer| {
                let value = values(word(peer))[i];
                peer.segment.words()[at / 8].store(value, Ordering::SeqCst);
            });
        }
        check(&c, &d, &way, name.len());
    }
    for seed in 0..100 {
        corrupt(&|peer| peer.segment.corrupt(seed));
    }
    check(&c, &d, &way, 500);
    // Of all these nothing is left.
    let open = port(&b);
    until(|| open.channels().len() == 2);
}

/// Counters of a receiver that cannot be: a send finds that out, and ends the channel.
#[test]
fn a_receiver_that_lies() {
    let b = end(&device());
    let (peer, to, _) = by_hand(&b);
    let consumed = 2 * shm::segment_layout::END + size_of::<shm::ring::Ring>();
    let words = peer.segment.words();
    words[consumed / 8].store(u64::MAX, Ordering::SeqCst);
    for _ in 0..2 * CELLS {
        b.send_to(&to, 8).unwrap();
        assert_eq!(b.sent_as(), (8, WcStatus::Success));
    }
    assert!(peer.socket_ended());
    until(|| port(&b).channels().len() == 0);
}

/// Datagrams to a peer whose channel has ended go over UDP, unless the path forbids that.
#[test]
fn a_channel_that_has_ended() {
    let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    udp.set_read_timeout(Some(PATIENCE)).unwrap();
    let number = udp.local_addr().unwrap().port();
    // The second one has to arrive first.
    for params in ["127.0.0.1 path=shm", "127.0.0.1"] {
        let b = end(&Soft::open(params).unwrap());
        let (peer, to, _) = by_hand_at(&b, number);
        b.send_to(&to, 1).unwrap();
        drop(peer);
        until(|| port(&b).channels().len() == 0);
        b.send_to(&to, params.len()).unwrap();
    }
    let mut datagram = [0; 1000];
    let n = udp.recv(&mut datagram).unwrap();
    let parsed = Route::parse(&datagram[..n]).map(|(_, len)| len);
    assert_eq!(parsed, Some("127.0.0.1".len()));
}

/// A process gets so many channels, and no more.
#[test]
fn keys_without_end() {
    let b = end(&device());
    let mut peers = Vec::new();
    for _ in 0..128 {
        peers.push(by_hand(&b));
    }
    // From another port of the same process, which this end has to refuse; path=shm allows no other way.
    let a = end(&device());
    let (server, qual) = Server::any(&b.device);
    a.connect(qual, b"").unwrap();
    b.device.accept(server.next(), &b.qp, b"").unwrap();
    assert_eq!(a.event(), CmEvent::NonPeerRejected);
    b.resolved();
    peers.clear();
    until(|| port(&b).channels().len() == 0);
    let to = resolve(&a, &b);
    check(&a, &b, &to, 8);
}

/// Where the paths of the two ends differ.
#[test]
fn paths_that_differ() {
    let tcp = Soft::open("127.0.0.1 path=tcp").unwrap();
    let (a, b) = (end(&tcp), end(&device()));
    let to = resolve(&a, &b);
    check(&a, &b, &to, 100);
    assert_eq!(
        (port(&a).channels().len(), port(&b).channels().len()),
        (0, 0)
    );
    let (_server, qual) = Server::any(&tcp);
    b.connect(qual, b"").unwrap();
    assert_eq!(b.event(), CmEvent::NonPeerRejected);
}

/// A version of this library without shared memory for datagrams knows one kind of hello, and closes a
/// local socket on which another arrives. It is asked over TCP then, and its datagrams go over UDP.
#[test]
fn a_peer_of_a_version_without_channels() {
    let device = Soft::open("127.0.0.1").unwrap();
    let a = end(&device);
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let qual = tcp.local_addr().unwrap().port();
    let local = shm::listen(None, qual).unwrap();
    a.connect(qual.into(), b"").unwrap();
    let socket = patiently(|| rustix::net::accept(&local)).unwrap();
    let mut hello = [0; 8];
    let read = || rustix::net::recv(&socket, &mut hello, rustix::net::RecvFlags::DONTWAIT);
    assert_eq!(patiently(read).unwrap().1, 8);
    assert_ne!(&hello, b"libdat10");
    drop(socket);
    let (mut socket, _) = tcp.accept().unwrap();
    let mut bytes = Vec::new();
    let request = loop {
        let mut byte = [0];
        socket.read_exact(&mut byte).unwrap();
        bytes.push(byte[0]);
        if let Ok(Parsed::Frame(frame, _)) = parse(Frames::Request, &bytes) {
            break frame;
        }
    };
    let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    udp.set_read_timeout(Some(PATIENCE)).unwrap();
    let own = wire::End {
        qp_number: 7,
        port: udp.local_addr().unwrap().port(),
        key: 8,
        // Nonsense over TCP.
        shares: true,
    };
    let private_data = own.add_to(b"");
    let (reply, _) = request.answer(&LOCAL, &private_data).unwrap();
    let mut out = [0; FRAME_MAX];
    socket.write_all(reply.encode(&mut out).unwrap()).unwrap();
    a.send_to(&a.resolved().to, 100).unwrap();
    let mut datagram = [0; 1000];
    let n = udp.recv(&mut datagram).unwrap();
    let (route, len) = Route::parse(&datagram[..n]).unwrap();
    assert_eq!((route.receiver, route.key, len), (7, 8, 100));
}

/// Many questions of one end to another at a time, whose answers may arrive in any order.
#[test]
fn many_questions_at_once() {
    const MANY: usize = 30;
    for _ in 0..10 {
        let (a, b) = (end(&device()), end(&device()));
        let (server, qual) = Server::any(&b.device);
        for _ in 0..MANY {
            a.connect(qual, b"").unwrap();
        }
        for _ in 0..MANY {
            b.device.accept(server.next(), &b.qp, b"").unwrap();
        }
        for i in 0..MANY {
            check(&a, &b, &a.resolved().to, i);
            check(&b, &a, &b.resolved().to, i);
        }
        // From now on there is no other.
        let before = port(&a).channels().len();
        resolve(&a, &b);
        assert_eq!(
            (port(&a).channels().len(), port(&b).channels().len()),
            (before, before)
        );
    }
}
