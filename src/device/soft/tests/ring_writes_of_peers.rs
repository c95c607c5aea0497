//! Short RDMA writes in the ring of a peer that does with them what it likes.

use std::sync::atomic::AtomicBool;

use super::shm_peer::{ShmPeer, connected, device, initiate, over};
use super::*;
use crate::device::soft::transport::shm::EndPhase;
use crate::device::soft::transport::shm::ring::{CellFlags, Consumer, Kind, Producer, TARGET_LEN};

/// A peer that sends writes.
struct Initiator {
    peer: ShmPeer,
    producer: Producer,
}

impl Initiator {
    /// Offers the writes from the next cell on.
    fn offer(&self) -> u64 {
        let number = self.producer.next_cell();
        self.peer.segment.tx_claim().offer(number);
        number
    }

    /// Fills a cell with a write of so many bytes of sevens.
    fn write(&mut self, to: Remote, len: usize, flags: CellFlags) {
        let ring = self.peer.segment.tx_ring();
        let (kind, skip) = match len <= 40 {
            true => (Kind::Write, TARGET_LEN),
            false => (Kind::LongWrite, 0),
        };
        let cell = self.producer.in_cell(ring).cast::<[u64; 2]>();
        let data = self.producer.payload(ring, kind).wrapping_add(skip);
        // SAFETY: the ring is empty enough.
        unsafe {
            cell.write_unaligned([to.addr, to.rkey.into()]);
            data.write_bytes(7, len);
        }
        self.producer.publish(ring, kind, flags, skip + len);
    }

    /// Fills a cell with 8 bytes of a message.
    fn message(&mut self, flags: CellFlags) {
        let ring = self.peer.segment.tx_ring();
        let fill = |_: *mut u8| Ok::<_, ()>(());
        let pushed = self.producer.push(ring, Kind::Inline, flags, 8, fill);
        pushed.unwrap();
    }

    fn is_consumed(&mut self) -> bool {
        let ring = self.peer.segment.tx_ring();
        let end = self.producer.next_cell();
        self.producer.has_consumed(ring, end).unwrap()
    }
}

fn initiator(device: &Arc<Soft>) -> (Initiator, End) {
    let (peer, b) = connected(device);
    let producer = Producer::default();
    (Initiator { peer, producer }, b)
}

/// The next completion, in short, though no consumer polls the device; `serve` is called until then.
fn completed(cq: &Cq, serve: impl Fn()) -> (u64, WcStatus) {
    let mut completion = None;
    until(|| {
        serve();
        completion = cq.poll();
        completion.is_some()
    });
    let completion = completion.unwrap();
    (completion.wr_id, completion.status)
}

#[test]
fn writes_of_a_peer() {
    let device = device();
    let (mut peer, b) = initiator(&device);
    let outside = Remote {
        addr: b.first + BUFFER as u64 - 8,
        rkey: b.key(),
    };
    let wrong = Remote {
        rkey: b.key() ^ 1 << 20,
        ..b.remote(0)
    };
    let served = |peer: &mut Initiator| {
        until(|| {
            device.progress();
            peer.is_consumed()
        });
    };
    // Two that are executed.
    peer.offer();
    peer.write(b.remote(0), 8, CellFlags::FIRST);
    peer.write(b.remote(100), 500, CellFlags::empty());
    served(&mut peer);
    assert_eq!(
        (b.bytes(0, 9)[..8].to_vec(), b.bytes(8, 1)),
        (vec![7; 8], vec![0])
    );
    assert_eq!(
        (b.bytes(100, 500), b.bytes(600, 1)),
        (vec![7; 500], vec![0])
    );
    // One that was not offered, one that was withdrawn.
    let number = peer.offer();
    assert_eq!(peer.peer.segment.tx_claim().withdraw(number), Ok(true));
    peer.write(b.remote(1000), 8, CellFlags::FIRST);
    peer.write(b.remote(1000), 8, CellFlags::FIRST);
    served(&mut peer);
    assert_eq!(b.bytes(1000, 8), [0; 8]);
    // One that fails, and one behind that.
    for bad in [wrong, outside] {
        let number = peer.offer();
        peer.write(b.remote(2000), 8, CellFlags::FIRST);
        peer.write(bad, 16, CellFlags::empty());
        peer.write(b.remote(1000), 8, CellFlags::empty());
        served(&mut peer);
        assert_eq!(peer.peer.segment.tx_claim().failed(number), Ok(Some(1)));
        assert_eq!(
            (b.bytes(1000, 8), b.bytes(2000, 8)),
            (vec![0; 8], vec![7; 8])
        );
        b.fill(2000, &[0; 8]);
    }
    b.no_event();
    drop(peer);
    over(&b);
}

/// Messages in front of writes and behind them are received, though no consumer polls.
#[test]
fn writes_between_messages_of_a_peer() {
    let device = device();
    let (mut peer, b) = initiator(&device);
    doze(&device);
    for round in 0..50 {
        peer.message(CellFlags::LAST);
        peer.offer();
        peer.write(b.remote(1000), 8, CellFlags::FIRST);
        peer.message(CellFlags::LAST);
        peer.peer.send(b"!");
        for n in 0..2 {
            b.recv(2 * round + n, &[b.sge(0, 8)]).unwrap();
        }
        for n in 0..2 {
            let received = completed(&b.recv_cq, || ());
            assert_eq!(received, (2 * round + n, WcStatus::Success));
        }
        assert_eq!(b.bytes(1000, 8), [7; 8]);
        b.fill(1000, &[0; 8]);
    }
}

/// A message behind a write is not left behind for ever when a receive is posted for it, however the connection is
/// notified of messages, though no consumer polls and nothing else happens.
#[test]
fn a_message_behind_writes_and_a_late_receive() {
    for connections in [1, 20] {
        let device = device();
        let ends: Vec<_> = (1..connections).map(|_| connected(&device)).collect();
        let (mut peer, b) = initiator(&device);
        // From many connections on there are ready bits.
        device.progress();
        doze(&device);
        for round in 0..10 {
            peer.message(CellFlags::LAST);
            let number = peer.offer();
            assert_eq!(peer.peer.segment.tx_claim().withdraw(number), Ok(true));
            peer.write(b.remote(1000), 8, CellFlags::FIRST);
            peer.message(CellFlags::LAST);
            peer.peer.notify();
            until(|| {
                let is_starved = b.on_shm(|conn| conn.is_starved());
                is_starved && device.engine.poll_set_is_at_rest()
            });
            // Both receives are posted before the engine serves again.
            let pause = device.engine.pause();
            for n in 0..2 {
                b.recv(2 * round + n, &[b.sge(0, 8)]).unwrap();
            }
            drop(pause);
            for n in 0..2 {
                let received = completed(&b.recv_cq, || ());
                assert_eq!(received, (2 * round + n, WcStatus::Success));
            }
        }
        drop(ends);
    }
}

/// A write without a first one, and one in the middle of a message.
#[test]
fn writes_out_of_place() {
    let device = device();
    for in_message in [false, true] {
        let (mut peer, b) = initiator(&device);
        b.recv(1, &[b.sge(0, 100)]).unwrap();
        if in_message {
            peer.message(CellFlags::empty());
            peer.offer();
        }
        let mut flags = CellFlags::empty();
        flags.set(CellFlags::FIRST, in_message);
        peer.write(b.remote(1000), 8, flags);
        device.progress();
        peer.peer.send(b"!");
        assert_eq!(b.event(), CmEvent::Broken);
        assert_eq!(b.bytes(1000, 8), [0; 8]);
    }
}

/// A peer that sends writes without end holds up nobody who polls.
#[test]
fn writes_without_end() {
    let device = device();
    let (mut peer, b) = initiator(&device);
    let (c, d) = Net {
        active: device.clone(),
        passive: device.clone(),
        loopback: false,
    }
    .pair();
    let (stop, to) = (AtomicBool::new(false), b.remote(0));
    std::thread::scope(|s| {
        s.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let ring = peer.peer.segment.tx_ring();
                if peer.producer.has_cell(ring).unwrap() {
                    peer.offer();
                    peer.write(to, 8, CellFlags::FIRST);
                }
            }
        });
        for round in 0..500 {
            d.recv(round, &[]).unwrap();
            c.post(round, SendOp::Send, &[]).unwrap();
            assert_eq!(d.received_as(), (round, WcStatus::Success));
            assert_eq!(c.sent_as(), (round, WcStatus::Success));
        }
        stop.store(true, Ordering::Relaxed);
    });
    b.no_event();
    drop(peer);
    over(&b);
}

/// A peer that executes the writes of our end, as it likes.
struct Responder {
    peer: ShmPeer,
    consumer: Consumer,
}

impl Responder {
    /// Consumes so many cells, which are filled.
    fn consume(&mut self, cells: u64) {
        let ring = self.peer.segment.rx_ring();
        for _ in 0..cells {
            let piece = self.consumer.peek(ring).unwrap().expect("a filled cell");
            self.consumer.advance(&piece);
        }
        self.consumer.publish(ring);
    }
}

/// The number of the first cell of the writes that [`responder`] has taken.
const FIRST: u64 = 0;

/// A peer to which our end has sent a burst of writes that it has taken.
fn responder(device: &Arc<Soft>) -> (Responder, End) {
    let mut made = None;
    until(|| {
        made = offer_burst(device);
        made.is_some()
    });
    made.unwrap()
}

/// The same. `None` if this thread was interrupted for so long that some writes of the burst went to the kernel, or were
/// taken back.
fn offer_burst(device: &Arc<Soft>) -> Option<(Responder, End)> {
    let (peer, b) = connected(device);
    until(|| peer.segment.theirs().phase() == EndPhase::Open);
    // All keys of the process are those of the peer.
    let scope = peer.segment.theirs().scope();
    peer.segment.ours().set_scope(scope);
    device.progress();
    b.write(0, b.remote(0), 0, 8);
    assert_eq!(b.sent_as(), (0, WcStatus::Success));
    b.is_patient();
    b.on_shm(|conn| conn.expect_burst());
    for n in 1..5 {
        b.write(n, b.remote(4096 * n as usize), 0, 8);
    }
    device.progress();
    if b.cells() != 4 || !peer.segment.rx_claim().take(FIRST) {
        return None;
    }
    let consumer = Consumer::default();
    b.on_shm(|conn| conn.tx.writes.is_patient = false);
    Some((Responder { peer, consumer }, b))
}

fn sent(b: &End, n: u64, status: WcStatus) {
    assert_eq!(b.sent_as(), (n, status));
}

#[test]
fn a_peer_that_takes_writes_one_by_one() {
    let device = device();
    let (mut peer, b) = responder(&device);
    device.progress();
    assert_eq!(b.send_cq.poll(), None);
    for n in 1..5 {
        peer.consume(1);
        sent(&b, n, WcStatus::Success);
    }
    b.no_event();
    drop(peer);
    over(&b);
}

/// What is behind writes that were taken and are never consumed waits, and is flushed.
#[test]
fn a_peer_that_takes_writes_and_nothing_else() {
    let device = device();
    for consumed in 0..4 {
        let (mut peer, b) = responder(&device);
        b.post(5, SendOp::Send, &[]).unwrap();
        peer.consume(consumed);
        b.qp.disconnect(false);
        for n in 1..6 {
            let status = match n <= consumed {
                true => WcStatus::Success,
                false => WcStatus::Flushed,
            };
            sent(&b, n, status);
        }
        drop(peer);
        over(&b);
    }
}

#[test]
fn a_peer_that_refuses_writes() {
    let device = device();
    for bad in 0..4 {
        let (mut peer, b) = responder(&device);
        peer.peer.segment.rx_claim().fail(FIRST + bad);
        peer.consume(4);
        for n in 0..4 {
            let status = status_beside_refused(n, bad);
            sent(&b, n + 1, status);
        }
        assert_eq!(b.event(), CmEvent::Broken);
    }
}

/// The writes of a consumer that has polled and makes no call any more do not wait for a peer that does not take them.
#[test]
fn a_consumer_that_computes() {
    let device = device();
    let b = End::new(
        &device,
        QpAttr {
            max_send_wr: 100,
            ..attr()
        },
    );
    let peer = initiate(&b);
    peer.send(b"!");
    assert_eq!(b.event(), established(b""));
    until(|| peer.segment.theirs().phase() == EndPhase::Open);
    let scope = peer.segment.theirs().scope();
    peer.segment.ours().set_scope(scope);
    b.write(0, b.remote(0), 0, 8);
    assert_eq!(b.sent_as(), (0, WcStatus::Success));
    let consumer = Consumer::default();
    let mut peer = Responder { peer, consumer };
    until(|| {
        device.progress();
        // All that the thread of the engine does but the check below.
        let pause = device.engine.pause();
        b.on_shm(|conn| conn.expect_burst());
        let before = b.cells();
        for n in 1..=64 {
            b.write(n, b.remote(4096 * n as usize), 0, 8);
        }
        let put = b.cells() - before;
        for n in 1..=64 {
            let sent = completed(&b.send_cq, || device.engine.check_coalesced());
            assert_eq!(sent, (n, WcStatus::Success));
        }
        drop(pause);
        peer.consume(put);
        // Otherwise this thread was interrupted, or the ring was tried in vain before.
        put == 64
    });
}

/// A write that has completed fails, or one that is none.
#[test]
fn a_peer_that_lies_about_writes() {
    let device = device();
    let (mut peer, b) = responder(&device);
    peer.consume(2);
    sent(&b, 1, WcStatus::Success);
    sent(&b, 2, WcStatus::Success);
    peer.peer.segment.rx_claim().fail(FIRST);
    peer.consume(1);
    sent(&b, 3, WcStatus::Flushed);
    sent(&b, 4, WcStatus::Flushed);
    assert_eq!(b.event(), CmEvent::Broken);
    let (mut peer, b) = responder(&device);
    peer.peer.segment.rx_claim().fail(FIRST.wrapping_sub(1));
    peer.consume(4);
    for n in 1..5 {
        sent(&b, n, WcStatus::Success);
    }
    drop(peer);
    over(&b);
}
