//! Every word of a segment that a peer can write, with every extreme value, in every state of the
//! connection: that connection goes on or ends, in the time that it would take without the peer; no
//! other ends, and no memory changes but that of the receives.

use std::sync::atomic::{AtomicBool, AtomicU64};

use super::raw::LOCAL;
use super::shm_peer::{ShmPeer, connected, device, initiate, over};
use super::*;
use crate::device::soft::iwarp::mpa::FRAME_MAX;
use crate::device::soft::transport::shm::atomic_response::AtomicResponse;
use crate::device::soft::transport::shm::offer::Offer;
use crate::device::soft::transport::shm::ring::{CELLS, CellFlags, DATA_LEN, Kind, Producer, Ring};
use crate::device::soft::transport::shm::write_claim::WriteClaim;
use crate::device::soft::transport::shm::{EndPhase, segment_layout};

/// A word of the segment, and its name.
pub(super) type Word = (&'static str, usize);

/// The words that have a meaning. All others are padding or payload.
pub(super) fn words() -> Vec<Word> {
    let mut words = Vec::new();
    for end in 0..2 {
        let at = end * segment_layout::END;
        words.push(("phase and protection domain", at));
        words.push(("bitmap place", at + 8));
        words.push(("doorbell", at + segment_layout::DOORBELL));
        words.push(("copy guard", at + segment_layout::COPY_GUARD));
    }
    for ring in 0..2 {
        let at = 2 * segment_layout::END + ring * size_of::<Ring>();
        words.push(("consumed cells", at));
        words.push(("consumed bytes", at + 8));
        for cell in [0, 1, 2, CELLS - 1] {
            words.push(("cell header", at + 128 + cell * 64));
        }
    }
    for offer in 0..2 {
        let at = segment_layout::OFFERS + offer * size_of::<Offer>();
        words.push(("stage of an offer", at));
        words.push(("offset of a half", at + 8));
        words.push(("address of a half", at + 16));
        words.push(("key of a half", at + 24));
    }
    for end in 0..2 {
        let at = segment_layout::RESPONSES + end * size_of::<AtomicResponse>();
        words.push(("end of an atomic operation", at));
        words.push(("word before an atomic operation", at + 8));
        let at = segment_layout::CLAIMS + end * size_of::<WriteClaim>();
        words.push(("claim of writes", at));
        words.push(("write that has failed", at + 8));
    }
    words
}

/// The number of values below that are no headers of cells.
const GENERIC: usize = 21;

/// The values: extremes, words that are nearly right for some meaning, and what was there.
pub(super) fn values(before: u64) -> Vec<u64> {
    let header = |number: u32, len: u64, kind: u64, flags: u64| {
        u64::from(number) | len << 32 | kind << 48 | flags << 56
    };
    vec![
        0,
        1,
        2,
        3,
        u64::MAX,
        1 << 63,
        (1 << 63) - 1,
        u64::from(u32::MAX),
        1 << 32,
        5 << 32 | 5,
        before.wrapping_add(1),
        before.wrapping_sub(1),
        before ^ 1 << 31,
        DATA_LEN as u64,
        DATA_LEN as u64 + 64,
        CELLS as u64 + 1,
        // The stages of a first offer: open, helped, taken, unfit, withdrawn.
        2,
        4,
        7,
        9,
        11,
        // A first cell: too long, empty and not the last, of no kind, with unknown flags; a chunk
        // without bytes, and longer than the ring; two keys to invalidate; offers.
        header(1, 57, 1, 1),
        header(1, 0, 1, 0),
        header(1, 8, 0, 1),
        header(1, 8, 5, 1),
        header(1, 8, 4, 1),
        header(1, 16, 4, 0),
        header(1, 48, 4, 1),
        header(1, 8, 1, 0xfd),
        header(1, 0, 2, 1),
        header(1, 0xffff, 2, 1),
        header(1, 4, 3, 0),
        header(1, 3, 3, 0),
        // RDMA writes: the first of some and another one, too short, without data, and beyond the ring.
        header(1, 24, 7, 4),
        header(1, 24, 7, 0),
        header(1, 15, 7, 4),
        header(1, 0, 8, 4),
        header(1, 0xffff, 8, 4),
        // The numbers that the second and third cell have, and one of the round before.
        header(2, 8, 1, 1),
        header(3, 8, 1, 1),
        header(CELLS as u32 + 1, 8, 1, 1),
    ]
}

/// How far the connection is when the peer writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// The memory is shared, and no request was sent.
    Shared,
    /// The request was accepted, and nothing has followed.
    Accepted,
    /// Established.
    Idle,
    /// Half of a message is in the ring, and the receives for it.
    HalfReceived,
    /// The ring is full of messages of ours, and more are queued.
    Full,
    /// A message of ours is offered, and another one is queued.
    Offered,
    /// RDMA writes of ours are in the ring, which the peer has taken.
    Written,
    /// A write of the peer is offered, with the header of its cell to follow.
    Writing,
    /// Our consumer has ended the connection gracefully, with messages queued.
    Closing,
}

const STATES: [State; 9] = [
    State::Shared,
    State::Accepted,
    State::Idle,
    State::HalfReceived,
    State::Full,
    State::Offered,
    State::Written,
    State::Writing,
    State::Closing,
];

/// Bytes of each receive, and of the messages that fill the ring.
const RECEIVE: usize = 1000;
const LONG: usize = 64 * 1024;

/// A peer in that state, up to the point at which it writes. `write` is called there.
fn reach(
    device: &Arc<Soft>,
    state: State,
    write: &mut dyn FnMut(&ShmPeer),
) -> (ShmPeer, End, bool) {
    if state == State::Shared {
        let (server, qual) = Server::any(device);
        let peer = ShmPeer::connect(qual);
        write(&peer);
        let mut bytes = [0; FRAME_MAX];
        peer.send(LOCAL.request(2, b"").encode(&mut bytes).unwrap());
        let b = End::new(device, attr());
        device.accept(server.next(), &b.qp, b"").unwrap();
        return (peer, b, false);
    }
    if state == State::Accepted {
        let b = End::new(device, attr());
        let peer = initiate(&b);
        write(&peer);
        return (peer, b, false);
    }
    let (peer, b) = connected(device);
    match state {
        State::HalfReceived => {
            let part = |to: *mut u8| {
                // SAFETY: a cell has room for that.
                unsafe { to.write_bytes(7, 8) };
                Ok::<_, ()>(())
            };
            let mut producer = Producer::default();
            let ring = peer.segment.tx_ring();
            producer
                .push(ring, Kind::Inline, CellFlags::empty(), 8, part)
                .unwrap();
        }
        State::Full | State::Closing => {
            // In four segments, which are not offered.
            let quarter = |i| b.sge(BUFFER - LONG + i * LONG / 4, LONG / 4);
            for i in 0..4 {
                b.post(i, SendOp::Send, &[0, 1, 2, 3].map(quarter)).unwrap();
            }
        }
        State::Offered => {
            for i in 0..2 {
                b.post(i, SendOp::Send, &[b.sge(BUFFER - LONG, LONG)])
                    .unwrap();
            }
        }
        State::Written => {
            peer.segment.ours().set_scope(peer.segment.theirs().scope());
            write_burst(device, &b);
            peer.segment.rx_claim().take(0);
        }
        State::Writing => {
            let at = peer.segment.tx_ring();
            let cell = Producer::default().in_cell(at).cast::<[u64; 2]>();
            // SAFETY: a cell has room for that.
            unsafe { cell.write_unaligned([b.first, b.key().into()]) };
            peer.segment.tx_claim().offer(0);
        }
        _ => {}
    }
    for i in 0..4 {
        let at = i as usize * RECEIVE;
        b.recv(100 + i, &[b.sge(at, RECEIVE)]).unwrap();
    }
    if state == State::Closing {
        b.qp.disconnect(true);
    }
    write(&peer);
    (peer, b, true)
}

/// Writes some words of our own to where they are, through the ring.
fn write_burst(device: &Arc<Soft>, b: &End) {
    let at = BUFFER - LONG;
    device.progress();
    for n in 0..4 {
        if n == 1 {
            b.on_shm(|conn| conn.expect_burst());
        }
        let to = b.remote(at + 4096 * n);
        b.post(n as u64, SendOp::RdmaWrite(to), &[b.sge(at + 4096 * n, 8)])
            .unwrap();
    }
    device.progress();
}

/// An honest connection of the same device, and the memory of a victim outside of its receives.
struct Honest(End, End, Vec<u8>);

impl Honest {
    fn new(device: &Arc<Soft>) -> Honest {
        let (a, b) = Net {
            active: device.clone(),
            passive: device.clone(),
            loopback: false,
        }
        .pair();
        Honest(a, b, vec![0; BUFFER - 4 * RECEIVE])
    }

    fn check(&self) {
        let Honest(a, b, _) = self;
        b.recv(1, &[b.sge(0, 8)]).unwrap();
        a.post(1, SendOp::Send, &[a.sge(0, 8)]).unwrap();
        a.post(2, SendOp::RdmaWrite(b.remote(64)), &[a.sge(0, 8)])
            .unwrap();
        assert_eq!(b.received_as(), (1, WcStatus::Success));
        assert_eq!(a.sent_as(), (1, WcStatus::Success));
        assert_eq!(a.sent_as(), (2, WcStatus::Success));
        a.no_event();
        b.no_event();
    }
}

/// Our end does what a program would, until the connection is over. Its memory is as it was, but for
/// the receives.
fn finish(device: &Arc<Soft>, peer: ShmPeer, b: End, was_up: bool, honest: &Honest) {
    let remote = Remote { addr: 1, rkey: 1 };
    peer.send(b"!");
    for op in [
        SendOp::Send,
        SendOp::RdmaWrite(remote),
        SendOp::RdmaRead { remote, len: 8 },
    ] {
        // The connection may be over, or not established.
        let _ = b.post(9, op, &[b.sge(BUFFER - LONG, 100)]);
    }
    device.progress();
    doze(device);
    honest.check();
    peer.send(b"!");
    drop(peer);
    let end = Instant::now() + PATIENCE;
    loop {
        match b
            .events
            .recv_timeout(end.saturating_duration_since(Instant::now()))
        {
            Ok(CmEvent::Established { .. }) if !was_up => {
                // Nothing ends a connection that is established late but the end of the socket.
                continue;
            }
            Ok(CmEvent::Broken | CmEvent::Disconnected | CmEvent::AcceptError) => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((b.qp.send_outstanding(), b.qp.recv_outstanding()), (0, 0));
    let rest = b.bytes(4 * RECEIVE, BUFFER - 4 * RECEIVE);
    assert!(rest == honest.2, "memory has changed");
}

/// All words with all values in one state.
fn every_word(state: State) {
    let device = device();
    let honest = Honest::new(&device);
    for (name, at) in words() {
        let count = match name {
            "cell header" | "stage of an offer" => values(0).len(),
            _ => GENERIC,
        };
        for number in 0..count {
            let mut write = |peer: &ShmPeer| {
                let word = &peer.segment.words()[at / 8];
                let value = values(word.load(Ordering::Relaxed))[number];
                word.store(value, Ordering::SeqCst);
            };
            let context = format!("{state:?}: {name} at {at}, value {number}");
            let begun = Instant::now();
            let held = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let (peer, b, was_up) = reach(&device, state, &mut write);
                finish(&device, peer, b, was_up, &honest);
            }));
            let taken = begun.elapsed();
            assert!(held.is_ok() && taken < PATIENCE / 2, "{context}: {taken:?}");
        }
    }
}

/// Peers in it say that they copy by every key, and do not end that: such a claim keeps the memory of a whole process
/// from being shared, which other tests would wait for.
#[test]
fn every_word_with_every_value_in_every_state() {
    alone(
        "shm_words::every_word_with_every_value_in_every_state",
        every_state,
    );
}

fn every_state() {
    // They wait more than they work.
    std::thread::scope(|s| {
        for state in STATES {
            s.spawn(move || every_word(state));
        }
    });
}

/// The same while the words change all the time.
#[test]
fn words_that_move() {
    alone("shm_words::words_that_move", moving);
}

fn moving() {
    let device = device();
    let honest = Honest::new(&device);
    for (name, at) in words() {
        let context = format!("{name} at {at}");
        let (peer, b, _) = reach(&device, State::HalfReceived, &mut |_| ());
        let stop = AtomicBool::new(false);
        let segment = peer.segment.clone();
        std::thread::scope(|s| {
            s.spawn(|| {
                let word: &AtomicU64 = &segment.words()[at / 8];
                let all = values(word.load(Ordering::Relaxed));
                let first = all[0];
                // Two of the values in turn, and each pair of them.
                let pairs = all.iter().flat_map(|a| all.iter().map(move |b| (*a, *b)));
                for (a, b) in pairs.cycle() {
                    for value in [a, b, a, b] {
                        word.store(value, Ordering::SeqCst);
                    }
                    if stop.load(Ordering::SeqCst) {
                        break;
                    }
                }
                word.store(first, Ordering::SeqCst);
            });
            for _ in 0..50 {
                let _ = b.post(9, SendOp::Send, &[b.sge(BUFFER - LONG, 100)]);
                peer.send(b"!");
                device.progress();
                while b.send_cq.poll().is_some() || b.recv_cq.poll().is_some() {}
            }
            honest.check();
            stop.store(true, Ordering::SeqCst);
        });
        println!("{context}");
        b.qp.disconnect(false);
        drop(peer);
        over(&b);
    }
}

/// A peer goes through its phases in any order.
#[test]
fn phases_out_of_order() {
    let device = device();
    let honest = Honest::new(&device);
    let phases = [
        EndPhase::Fresh,
        EndPhase::Open,
        EndPhase::Closed,
        EndPhase::Broken,
        EndPhase::Aborted,
    ];
    for first in phases {
        for second in phases {
            let (peer, b) = connected(&device);
            b.recv(1, &[b.sge(0, 8)]).unwrap();
            for phase in [first, second] {
                peer.segment.ours().set_phase(phase);
                peer.send(b"!");
                device.progress();
            }
            honest.check();
            drop(peer);
            over(&b);
        }
    }
}
