//! In which order messages of several peers of this host are received, if the peers put them into their rings in a
//! certain one.

use super::shm_peer::{ShmPeer, connected, device, initiate};
use super::*;
use crate::device::soft::transport::shm::ring::{
    CellFlags, IMMEDIATE_LEN, Kind, Producer, TARGET_LEN,
};
use crate::device::soft::upcalls::Upcalls;

/// A peer that sends.
struct Sender {
    peer: ShmPeer,
    producer: Producer,
}

impl Sender {
    fn new(peer: ShmPeer) -> Sender {
        let producer = Producer::default();
        Sender { peer, producer }
    }

    /// Fills a cell with so many bytes of zero.
    fn fill(&mut self, kind: Kind, flags: CellFlags, len: usize) {
        let ring = self.peer.segment.tx_ring();
        let fill = |to: *mut u8| {
            // SAFETY: the cell holds as much.
            unsafe { to.write_bytes(0, len) };
            Ok::<_, ()>(())
        };
        self.producer.push(ring, kind, flags, len, fill).unwrap();
        self.peer.set_ready_bit();
    }

    /// The last part of a message, or one before.
    fn send(&mut self, flags: CellFlags) {
        self.fill(Kind::Inline, flags, 8);
    }

    /// A write that is taken back.
    fn withdrawn_write(&mut self) {
        let claim = self.peer.segment.tx_claim();
        let number = self.producer.next_cell();
        claim.offer(number);
        assert_eq!(claim.withdraw(number), Ok(true));
        self.fill(Kind::Write, CellFlags::FIRST, TARGET_LEN + 8);
    }
}

/// Two peers, whose messages complete in the queue of the first end, by their numbers, and others that keep silent.
struct Pair {
    senders: [Sender; 2],
    ends: [End; 2],
    _others: Vec<(ShmPeer, End)>,
}

impl Pair {
    fn new(device: &Arc<Soft>, others: usize) -> Pair {
        let (first, a) = connected(device);
        let mut b = End::new(device, attr());
        let (tx, events) = channel();
        let parts = QpParts {
            pd: &b.pd,
            send_cq: Some(&b.send_cq),
            recv_cq: Some(&a.recv_cq),
            srq: None,
        };
        let qp = device.create_qp(&parts, &attr(), Connection::new(tx));
        (b.qp, b.events) = (qp.unwrap(), events);
        let second = initiate(&b);
        second.send(b"!");
        assert_eq!(b.event(), established(b""));
        let mut pair = Pair {
            senders: [first, second].map(Sender::new),
            ends: [a, b],
            _others: (0..others).map(|_| connected(device)).collect(),
        };
        for n in 0..8 {
            for (id, end) in pair.ends.iter().enumerate() {
                end.recv(id as u64, &[end.sge(16 * n, 16)]).unwrap();
            }
        }
        // Consumers poll from now on. An end receives a moment after its consumer has the event of the connection.
        pair.step(0);
        pair.step(1);
        pair
    }

    /// A message of one of them is received.
    fn step(&mut self, id: usize) {
        self.senders[id].send(CellFlags::LAST);
        assert_eq!(self.ends[0].received_as(), (id as u64, WcStatus::Success));
    }

    /// Whose messages have been received, once there are so many.
    fn received(&self, count: usize) -> Vec<u64> {
        (0..count).map(|_| self.ends[0].received().wr_id).collect()
    }
}

/// With few connections, and with as many as have ready bits.
const OTHERS: [usize; 2] = [0, 20];

/// A message of which a part was received when the other one had its turn is that of an earlier step.
#[test]
fn a_message_in_parts() {
    let device = device();
    for others in OTHERS {
        let mut pair = Pair::new(&device, others);
        pair.senders[0].send(CellFlags::empty());
        device.progress();
        pair.senders[0].send(CellFlags::LAST);
        pair.senders[1].send(CellFlags::LAST);
        assert_eq!(pair.received(2), [0, 1], "{others}");
    }
}

/// Goes on with a poll that found this end to be the only one with a connection through shared memory.
fn go_on_with_poll(end: &End) {
    let mut up = Upcalls::default();
    let served = end.qp.with(|locked| match locked.link {
        Link::Shm(conn) => conn.messages_arrived::<true>(locked.me, locked.guard, &mut up),
        _ => panic!("not connected through shared memory"),
    });
    up.run();
    assert!(served.is_ok());
}

/// A thread that polls the only connection is put to sleep. Meanwhile another one is made, and a message is sent over that
/// before one over the first, a whole one or one in parts: they are received in this order.
#[test]
fn a_connection_that_is_made_beside_a_poll() {
    let device = device();
    for parts in [1, 2] {
        let mut pair = Pair::new(&device, 0);
        // The turn of the second one comes first, as that of one that was never served.
        pair.step(0);
        let pause = device.engine.pause();
        pair.senders[1].send(CellFlags::LAST);
        for part in 1..=parts {
            let last = if part == parts {
                CellFlags::LAST
            } else {
                CellFlags::empty()
            };
            pair.senders[0].send(last);
        }
        go_on_with_poll(&pair.ends[0]);
        drop(pause);
        assert_eq!(pair.received(2), [1, 0], "{parts}");
    }
}

/// A message behind a write that was taken back has the turn of its connection.
#[test]
fn a_message_behind_a_write() {
    let device = device();
    for others in OTHERS {
        for before in [0, 1] {
            let mut pair = Pair::new(&device, others);
            let pause = device.engine.pause();
            // The first one is behind a message, and behind that of the other end, too.
            for _ in 0..before {
                pair.senders[0].send(CellFlags::LAST);
                pair.senders[1].send(CellFlags::LAST);
            }
            pair.senders[0].withdrawn_write();
            pair.senders[0].send(CellFlags::LAST);
            pair.senders[1].send(CellFlags::LAST);
            drop(pause);
            let expected = [0, 1].repeat(before + 1);
            assert_eq!(pair.received(2 * before + 2), expected, "{others}");
        }
    }
}

/// Writes without a message behind them are executed, whether consumers poll or not.
#[test]
fn writes_alone() {
    let device = device();
    for others in OTHERS {
        let mut pair = Pair::new(&device, others);
        for polls in [true, false, true] {
            if !polls {
                doze(&device);
            }
            for _ in 0..100 {
                let sender = &mut pair.senders[1];
                sender.withdrawn_write();
                if !polls {
                    sender.peer.send(b"!");
                }
                until(|| {
                    if polls {
                        device.progress();
                    }
                    let (ring, end) = (sender.peer.segment.tx_ring(), sender.producer.next_cell());
                    sender.producer.has_consumed(ring, end).unwrap()
                });
            }
        }
    }
}

/// A message is a row of cells, with the key that it invalidates in front of them, and nothing else is among these.
#[test]
fn cells_of_messages_do_not_mix() {
    const LAST: CellFlags = CellFlags::LAST;
    let half = (Kind::Inline, CellFlags::empty(), 8);
    let rest = (Kind::Inline, LAST, 8);
    let key = (Kind::Invalidate, CellFlags::empty(), 4);
    let immediate = (Kind::Immediate, LAST, IMMEDIATE_LEN);
    let offer = (Kind::Offer, LAST, 24);
    let device = device();
    for (cells, ends) in [
        ([half, rest], false),
        ([half, key], true),
        ([half, immediate], true),
        ([half, offer], true),
        ([key, key], true),
        ([key, immediate], true),
    ] {
        let (peer, b) = connected(&device);
        for id in 0..2 {
            b.recv(id, &[b.sge(0, 16)]).unwrap();
        }
        let mut producer = Producer::default();
        for (kind, flags, len) in cells {
            let fill = |to: *mut u8| {
                // SAFETY: a cell has room for that.
                unsafe { to.write_bytes(7, len) };
                Ok::<_, ()>(())
            };
            producer
                .push(peer.segment.tx_ring(), kind, flags, len, fill)
                .unwrap();
        }
        peer.notify();
        if ends {
            assert_eq!(b.event(), CmEvent::Broken, "{cells:?}");
            // What was wrong is the cell, and no receive.
            while let Some(c) = b.recv_cq.poll() {
                assert_eq!(c.status, WcStatus::Flushed, "{cells:?}");
            }
        } else {
            let c = b.received();
            assert_eq!((c.wr_id, c.byte_len), (0, 16));
            b.no_event();
        }
    }
}
