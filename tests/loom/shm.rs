//! Models of the rings that two processes share, under loom: every interleaving of the two ends, within a
//! bound of preemptions, and every value that the memory model lets a load see. They run the
//! code that ships; see `scripts/loom.sh`.
#![cfg(loom)]

mod model;

use std::sync::Arc;

use dat_core::testing::device::soft::transport::shm::doorbell::{Doorbell, WakeOn};
use dat_core::testing::device::soft::transport::shm::ring::{
    Assembly, CellFlags, Consumer, Kind, MAX_INLINE, Producer, Ring,
};
use loom::sync::{Condvar, Mutex};
use loom::thread;

use model::model;

/// The ring of one direction, and the doorbells of both ends.
struct Shared {
    ring: Box<Ring>,
    producer: Doorbell,
    consumer: Doorbell,
    /// The socket that wakes the producer.
    wake_producer: Socket,
    /// The socket that wakes the consumer.
    wake_consumer: Socket,
}

impl Shared {
    fn new() -> Arc<Shared> {
        Arc::new(Shared {
            ring: Ring::new(),
            producer: Doorbell::new(),
            consumer: Doorbell::new(),
            wake_producer: Socket::default(),
            wake_consumer: Socket::default(),
        })
    }
}

/// The socket that wakes an end.
#[derive(Default)]
struct Socket {
    /// Whether there are bytes in the socket.
    readable: Mutex<bool>,
    changed: Condvar,
}

impl Socket {
    fn ring(&self) {
        *self.readable.lock().unwrap() = true;
        self.changed.notify_one();
    }

    fn sleep(&self) {
        let mut readable = self.readable.lock().unwrap();
        while !*readable {
            readable = self.changed.wait(readable).unwrap();
        }
        *readable = false;
    }
}

/// Fills cells as a sender does, and sleeps when there is no room.
fn produce(shared: &Shared, payloads: &[(Kind, u8)]) {
    let mut p = Producer::default();
    for (kind, byte) in payloads {
        let has_room = |p: &mut Producer| {
            p.has_cell(&shared.ring).unwrap()
                && (*kind != Kind::Bulk || p.chunk(&shared.ring, MAX_INLINE + 1).unwrap() > 0)
        };
        while !has_room(&mut p) {
            shared.producer.arm(WakeOn::CELLS | WakeOn::ROOM);
            if has_room(&mut p) {
                break;
            }
            shared.wake_producer.sleep();
        }
        let len = if *kind == Kind::Bulk {
            MAX_INLINE + 1
        } else {
            1
        };
        let pushed = p.push(&shared.ring, *kind, CellFlags::LAST, len, |to| {
            // SAFETY: there is room for it.
            unsafe { to.write(*byte) };
            Ok::<_, ()>(())
        });
        assert_eq!(pushed, Ok(()));
        if shared.consumer.is_due(WakeOn::CELLS) {
            shared.wake_consumer.ring();
        }
    }
}

/// Empties cells as a receiver does, and sleeps when there are none.
fn consume(shared: &Shared, payloads: &[(Kind, u8)]) {
    let mut c = Consumer::default();
    for (kind, byte) in payloads {
        let piece = loop {
            if let Some(piece) = c.peek(&shared.ring).unwrap() {
                break piece;
            }
            shared.consumer.arm(WakeOn::CELLS);
            if let Some(piece) = c.peek(&shared.ring).unwrap() {
                break piece;
            }
            shared.wake_consumer.sleep();
        };
        // SAFETY: the piece has at least a byte.
        let got = c.payload(&shared.ring, &piece, |from| unsafe { from.read() });
        assert_eq!((piece.kind, got), (*kind, *byte));
        c.advance(&piece);
        if c.publish(&shared.ring) && shared.producer.is_due(WakeOn::ROOM) {
            shared.wake_producer.ring();
        }
    }
}

fn transfer(payloads: &'static [(Kind, u8)]) {
    model(move || {
        let shared = Shared::new();
        let other = {
            let shared = shared.clone();
            thread::spawn(move || produce(&shared, payloads))
        };
        consume(&shared, payloads);
        other.join().unwrap();
    });
}

/// A model ring has two cells: the third message waits for room. loom ends the model if an end
/// sleeps for ever, or accesses a payload that the other end owns.
#[test]
fn short_messages_arrive_and_nobody_sleeps_for_ever() {
    transfer(&[(Kind::Inline, 1), (Kind::Inline, 2), (Kind::Inline, 3)]);
}

/// A model ring has two blocks of bytes.
#[test]
fn long_messages_arrive_and_nobody_sleeps_for_ever() {
    transfer(&[(Kind::Bulk, 1), (Kind::Bulk, 2), (Kind::Bulk, 3)]);
}

/// Sends a message that does not wait for room, as datagrams are; whether there was room.
fn send_whole(shared: &Shared, p: &mut Producer, message: &[u8]) -> bool {
    let sent = p.push_whole(&shared.ring, CellFlags::empty(), message);
    if shared.consumer.is_due(WakeOn::CELLS) {
        shared.wake_consumer.ring();
    }
    sent.unwrap()
}

/// A message of two parts, which fill the ring of the model, and one that is sent if there is room by
/// then: each arrives whole or not at all, and nobody sleeps for ever.
#[test]
fn whole_messages_arrive_or_are_lost() {
    model(|| {
        let shared = Shared::new();
        let other = {
            let shared = shared.clone();
            thread::spawn(move || {
                let mut p = Producer::default();
                assert!(send_whole(&shared, &mut p, &[1; 100]));
                send_whole(&shared, &mut p, &[2; 3])
            })
        };
        let (mut c, mut assembly) = (Consumer::default(), Assembly::new(0, 100));
        let mut take = |c: &mut Consumer| {
            let taken = assembly.take(c, &shared.ring).unwrap();
            let taken = taken.map(|(message, _)| message.to_vec());
            c.publish(&shared.ring);
            taken
        };
        let first = loop {
            if let Some(message) = take(&mut c) {
                break message;
            }
            shared.consumer.arm(WakeOn::CELLS);
            if let Some(message) = take(&mut c) {
                break message;
            }
            shared.wake_consumer.sleep();
        };
        assert_eq!(first, [1; 100]);
        let second = other.join().unwrap().then(|| vec![2; 3]);
        assert_eq!(take(&mut c), second);
    });
}

/// An end that polls disarms its doorbell.
#[test]
fn an_end_that_wakes_up_by_itself() {
    model(|| {
        let shared = Shared::new();
        let other = {
            let shared = shared.clone();
            thread::spawn(move || produce(&shared, &[(Kind::Inline, 1), (Kind::Inline, 2)]))
        };
        shared.consumer.arm(WakeOn::CELLS);
        shared.consumer.disarm();
        consume(&shared, &[(Kind::Inline, 1), (Kind::Inline, 2)]);
        other.join().unwrap();
    });
}
