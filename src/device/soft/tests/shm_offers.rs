//! Long messages through shared memory, offered by a peer or to a peer that does with them what it
//! likes.

use std::sync::atomic::AtomicBool;

use super::shm_peer::{ShmPeer, connected, device, over};
use super::*;
use crate::device::soft::transport::shm::EndPhase;
use crate::device::soft::transport::shm::offer::{Offer, SecondHalf, Stage};
use crate::device::soft::transport::shm::ring::{CellFlags, Kind, Producer};

/// Bytes of a message.
const LEN: usize = 64 * 1024;
/// Where the messages of a peer are, in the memory of our end.
const SOURCE: usize = BUFFER - LEN;

/// A peer that sends.
struct Sender {
    peer: ShmPeer,
    producer: Producer,
}

impl Sender {
    fn offer(&self) -> &Offer {
        self.peer.segment.tx_offer()
    }

    /// Offers a message in the cell that is next, of these segments: address, length and key. It ends as
    /// [`sender`] has filled the memory.
    fn send(&mut self, segments: &[(u64, usize, u32)]) -> u64 {
        let number = self.producer.next_cell();
        self.offer().make(number);
        let words = segments
            .iter()
            .flat_map(|(addr, len, key)| [*addr, *len as u64 | u64::from(*key) << 32]);
        let mut words: Vec<u64> = words.collect();
        words.push(u64::from_ne_bytes(tail()));
        let fill = |to: *mut u8| {
            // SAFETY: a cell has room for three segments and a word.
            unsafe {
                words
                    .as_ptr()
                    .copy_to_nonoverlapping(to.cast(), words.len())
            };
            Ok::<_, ()>(())
        };
        let (ring, len) = (self.peer.segment.tx_ring(), size_of_val(&words[..]));
        self.producer
            .push(ring, Kind::Offer, CellFlags::LAST, len, fill)
            .unwrap();
        self.peer.send(b"!");
        number
    }

    fn stage(&self, number: u64) -> Stage {
        self.offer().stage(number).unwrap()
    }
}

/// A peer to which our end offers its long messages.
fn receiver(device: &Arc<Soft>) -> (ShmPeer, End) {
    let (peer, b) = connected(device);
    until(|| peer.segment.theirs().phase() == EndPhase::Open);
    (peer, b)
}

/// A peer that sends what is in the memory of our end.
fn sender(device: &Arc<Soft>) -> (Sender, End) {
    let (peer, b) = connected(device);
    let scope = peer.segment.theirs().scope();
    peer.segment.ours().set_scope(scope);
    b.fill(SOURCE, &pattern(LEN, 5));
    let sender = Sender {
        peer,
        producer: Producer::default(),
    };
    (sender, b)
}

/// The last bytes of the message of a [`sender`], which are in the cell of the offer.
fn tail() -> [u8; 8] {
    *pattern(LEN, 5).last_chunk().unwrap()
}

fn source(b: &End) -> (u64, usize, u32) {
    (b.buffer as u64 + SOURCE as u64, LEN, b.key())
}

#[test]
fn offered_and_taken() {
    let device = device();
    for addressing in ADDRESSINGS {
        let (sender, mut b) = sender(&device);
        b.register(addressing);
        is_taken(sender, &b);
    }
}

/// The addresses of the messages are those in memory, those of the receives what the kind of region says.
fn is_taken(mut sender: Sender, b: &End) {
    let (addr, _, key) = source(b);
    let segments = [
        (addr, 5, key),
        (addr + 5, 40_000, key),
        (addr + 40_005, LEN - 40_005, key),
    ];
    for parts in 1..=3 {
        let mut segments = segments[..parts].to_vec();
        segments[parts - 1].1 = LEN - (segments[parts - 1].0 - addr) as usize;
        b.fill(0, &vec![0; LEN]);
        b.recv(9, &[b.sge(0, 30_000), b.sge(30_000, LEN - 30_000)])
            .unwrap();
        let number = sender.send(&segments);
        assert_eq!(b.received_as(), (9, WcStatus::Success));
        assert_eq!(sender.stage(number), Stage::Taken);
        assert!(b.bytes(0, LEN) == pattern(LEN, 5));
    }
}

/// Memory that the peer has not registered: the peer has to end the connection, and is told so.
#[test]
fn memory_that_cannot_be_read() {
    let device = device();
    for segment in [
        |b: &End| (b.buffer as u64, LEN, b.key() ^ 1 << 20),
        |b: &End| (b.buffer as u64 + BUFFER as u64 - 4096, LEN, b.key()),
        |_: &End| (u64::MAX - 100, LEN, 1),
    ] {
        let (mut sender, b) = sender(&device);
        b.recv(1, &[b.sge(0, LEN)]).unwrap();
        let number = sender.send(&[segment(&b)]);
        until(|| {
            device.progress();
            sender.stage(number) == Stage::Unreadable
        });
        b.no_event();
        assert_eq!(b.qp.recv_outstanding(), 1);
        drop(sender);
        over(&b);
    }
}

#[test]
fn messages_that_fit_no_receive() {
    let device = device();
    let (mut sender, b) = sender(&device);
    b.recv(1, &[b.sge(0, LEN - 1)]).unwrap();
    let number = sender.send(&[source(&b)]);
    assert_eq!(b.received_as(), (1, WcStatus::LocalLength));
    assert_eq!(sender.stage(number), Stage::Unfit);
    over(&b);
    // Segments that are longer than any message, none, and no more than what is in the cell.
    for len in [u32::MAX as usize, 0, 8] {
        let (mut sender, b) = self::sender(&device);
        b.recv(1, &[b.sge(0, LEN)]).unwrap();
        let (addr, _, key) = source(&b);
        sender.send(&[(addr, len, key)]);
        over(&b);
    }
}

/// An offer that was withdrawn, or whose sender has left, is no message.
#[test]
fn offers_that_are_over() {
    let device = device();
    for withdraws in [true, false] {
        let (mut sender, b) = sender(&device);
        let number = sender.send(&[source(&b)]);
        if withdraws {
            assert_eq!(sender.offer().withdraw(number), Ok(Stage::Withdrawn));
        } else {
            sender.peer.segment.ours().set_phase(EndPhase::Aborted);
        }
        b.recv(1, &[b.sge(0, LEN)]).unwrap();
        sender.peer.send(b"!");
        device.progress();
        drop(sender);
        over(&b);
        assert_eq!(b.received_as(), (1, WcStatus::Flushed));
        assert!(b.bytes(0, LEN) == vec![0; LEN]);
    }
}

/// A sender that has claimed the second half of a message, and the number of the cell.
fn helping_sender(device: &Arc<Soft>) -> (Sender, End, u64) {
    for _ in 0..10_000 {
        let (mut sender, b) = sender(device);
        let number = sender.producer.next_cell();
        let (stop, claimed) = (AtomicBool::new(false), AtomicBool::new(false));
        let offer = sender.peer.segment.clone();
        std::thread::scope(|s| {
            s.spawn(|| {
                let offer = offer.tx_offer();
                while !stop.load(Ordering::SeqCst) {
                    if offer.change(number, Stage::Open, Stage::Helping) {
                        claimed.store(true, Ordering::SeqCst);
                        return;
                    }
                }
            });
            b.recv(1, &[b.sge(0, LEN)]).unwrap();
            sender.send(&[source(&b)]);
            let end = || claimed.load(Ordering::SeqCst) || b.qp.recv_outstanding() == 0;
            until(|| {
                device.progress();
                end()
            });
            stop.store(true, Ordering::SeqCst);
        });
        if claimed.load(Ordering::SeqCst) {
            return (sender, b, number);
        }
    }
    panic!("no half was claimed in time");
}

/// A sender that claims the second half and never copies it: the receive waits, and is the program's
/// again when the program ends the connection.
#[test]
fn a_half_without_end() {
    let device = device();
    let (sender, b, number) = helping_sender(&device);
    doze(&device);
    assert_eq!(b.qp.recv_outstanding(), 1);
    b.no_event();
    b.qp.disconnect(false);
    over(&b);
    assert_eq!(sender.stage(number), Stage::Withdrawn);
    assert_eq!(b.received_as(), (1, WcStatus::Flushed));
}

/// Programs wait for a message by polling its last byte: nobody stores that as long as anything else is copied.
#[test]
fn the_last_bytes_are_stored_last() {
    let device = device();
    let (sender, b, number) = helping_sender(&device);
    doze(&device);
    let half = LEN / 2..LEN - tail().len();
    assert!(b.bytes(0, half.start) == pattern(LEN, 5)[..half.start]);
    assert!(b.bytes(half.start, LEN - half.start) == vec![0; LEN - half.start]);
    // What the sender copies.
    b.fill(half.start, &pattern(LEN, 5)[half.clone()]);
    device.progress();
    assert_eq!(b.bytes(half.end, tail().len()), [0; 8]);
    assert!(sender.offer().change(number, Stage::Helping, Stage::Helped));
    sender.peer.notify();
    assert_eq!(b.received_as(), (1, WcStatus::Success));
    assert!(b.bytes(0, LEN) == pattern(LEN, 5));
}

/// A sender that takes its time for the second half, as one that was stopped does: this process sleeps meanwhile, and
/// has the message when the sender is done. With few connections, and with as many as have ready bits.
#[test]
fn a_half_that_takes_long() {
    // Others would use the time of the process.
    alone("shm_offers::a_half_that_takes_long", halves_that_take_long);
}

fn halves_that_take_long() {
    for others in [0, 2, 20] {
        for polls in [false, true] {
            let device = device();
            let _others: Vec<_> = (0..others).map(|_| connected(&device)).collect();
            let (sender, b, number) = helping_sender(&device);
            if !polls {
                doze(&device);
                // What was on its way is over.
                std::thread::sleep(Duration::from_millis(50));
                let begun = time_of_process();
                std::thread::sleep(Duration::from_millis(300));
                let used = time_of_process() - begun;
                assert!(used < Duration::from_millis(30), "{used:?}, {others}");
            }
            assert_eq!(b.qp.recv_outstanding(), 1);
            assert!(sender.offer().change(number, Stage::Helping, Stage::Helped));
            if polls {
                sender.peer.set_ready_bit();
                assert_eq!(b.received_as(), (1, WcStatus::Success));
            } else {
                assert!(others == 20 || sender.peer.segment.theirs().doorbell.is_armed());
                sender.peer.notify();
                until(|| b.recv_cq.poll().is_some());
            }
            assert_eq!(sender.stage(number), Stage::Taken);
        }
    }
}

/// The time of processors that this process has used.
fn time_of_process() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// What a receiver makes of an offer of ours, and how our request ends.
#[test]
fn a_receiver_decides() {
    let device = device();
    for (stage, status) in [
        (Stage::Taken, WcStatus::Success),
        (Stage::Unfit, WcStatus::RemoteOperation),
        (Stage::Unreadable, WcStatus::LocalProtection),
        (Stage::BadKey, WcStatus::RemoteAccess),
    ] {
        for ends in [false, true] {
            let (peer, b) = receiver(&device);
            b.post(7, SendOp::Send, &[b.sge(0, LEN)]).unwrap();
            assert_eq!(b.qp.send_outstanding(), 1);
            assert!(peer.segment.rx_offer().change(0, Stage::Offered, stage));
            if ends {
                // In one step with the end of the connection.
                peer.segment.ours().set_phase(EndPhase::Broken);
                drop(peer);
                assert_eq!(b.sent_as(), (7, status));
                over(&b);
                continue;
            }
            peer.send(b"!");
            assert_eq!(b.sent_as(), (7, status));
            if stage == Stage::Taken {
                b.no_event();
            } else {
                assert_eq!(b.event(), CmEvent::Broken);
            }
        }
    }
}

/// A receiver withdraws an offer when it ends the connection, and may be killed before it says so.
#[test]
fn a_receiver_that_is_killed_as_it_withdraws() {
    alone(
        "shm_offers::a_receiver_that_is_killed_as_it_withdraws",
        killed_as_it_withdraws,
    );
}

fn killed_as_it_withdraws() {
    // A thread that works on the connection for ever has the lock of its queue pair.
    // SAFETY: ends this process, which is for this test alone.
    unsafe { libc::alarm(PATIENCE.as_secs() as u32) };
    let device = device();
    let (peer, b) = receiver(&device);
    doze(&device);
    b.post(1, SendOp::Send, &[b.sge(0, LEN)]).unwrap();
    assert!(
        peer.segment
            .rx_offer()
            .change(0, Stage::Offered, Stage::Withdrawn)
    );
    peer.send(b"!");
    doze(&device);
    b.no_event();
    drop(peer);
    assert_eq!(b.event(), CmEvent::Broken);
    assert_eq!(b.send_cq.poll().unwrap().status, WcStatus::Flushed);
}

/// Our consumer ends the connection: the receiver finds the offer withdrawn, or the request has
/// completed.
#[test]
fn an_offer_of_ours_is_withdrawn() {
    let device = device();
    for taken in [false, true] {
        let (peer, b) = receiver(&device);
        b.post(7, SendOp::Send, &[b.sge(0, LEN)]).unwrap();
        let offer = peer.segment.rx_offer();
        if taken {
            assert!(offer.change(0, Stage::Offered, Stage::Taken));
        }
        b.qp.disconnect(false);
        let (last, status) = match taken {
            true => (Stage::Taken, WcStatus::Success),
            false => (Stage::Withdrawn, WcStatus::Flushed),
        };
        assert_eq!(offer.stage(0), Ok(last));
        assert_eq!(b.sent_as(), (7, status));
        assert_eq!(b.event(), CmEvent::Disconnected);
    }
}

/// The place of a second half is memory that our end may write, or our end does not help.
#[test]
fn places_of_a_half() {
    for addressing in ADDRESSINGS {
        places_of_a_half_of(addressing);
    }
}

fn places_of_a_half_of(addressing: Addressing) {
    let device = device();
    for (offset, key, last) in [
        (LEN as u64 / 2, 0, Stage::Helped),
        (0, 0, Stage::Helped),
        (LEN as u64 - 9, 0, Stage::Helped),
        (LEN as u64 / 2, 1 << 20, Stage::Declined),
        (LEN as u64 - 8, 0, Stage::Withdrawn),
        (LEN as u64, 0, Stage::Withdrawn),
        (LEN as u64 + 1, 0, Stage::Withdrawn),
        (u64::MAX, 0, Stage::Withdrawn),
    ] {
        let (peer, mut b) = receiver(&device);
        b.register(addressing);
        let scope = peer.segment.theirs().scope();
        peer.segment.ours().set_scope(scope);
        b.fill(0, &pattern(LEN, 3));
        b.post(7, SendOp::Send, &[b.sge(0, LEN)]).unwrap();
        let at = Remote {
            addr: b.buffer as u64 + SOURCE as u64,
            rkey: b.key() ^ key,
        };
        assert!(peer.segment.rx_offer().open(0, SecondHalf { offset, at }));
        peer.send(b"!");
        let stage = || peer.segment.rx_offer().stage(0).unwrap();
        until(|| {
            device.progress();
            !matches!(stage(), Stage::Open | Stage::Helping)
        });
        // All but the last bytes, which are in the cell.
        let copied = (LEN - 8).saturating_sub(offset as usize);
        // A violation ends the connection, and the offer with it.
        match last {
            Stage::Helped => {
                let mut half = pattern(LEN, 3)[offset as usize..LEN - 8].to_vec();
                half.resize(copied + 8, 0);
                assert!(b.bytes(SOURCE, copied + 8) == half);
            }
            Stage::Declined => b.no_event(),
            _ => assert_eq!(b.event(), CmEvent::Broken),
        }
        assert_eq!(stage(), last);
        if last == Stage::Withdrawn {
            continue;
        }
        drop(peer);
        over(&b);
    }
}
