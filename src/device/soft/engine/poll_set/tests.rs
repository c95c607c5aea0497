//! Tests of poll sets, with connections that only count.

use std::sync::atomic::AtomicU64;

use super::*;
use crate::device::soft::transport::shm::take_bitmap;

/// A connection with messages that have arrived.
#[derive(Default)]
struct Counted {
    arrived: AtomicU64,
    delivered: AtomicU64,
    served: LastServed,
}

impl PollEntry for Counted {
    fn poll(&self, guard: &Guard, up: &mut Upcalls) -> bool {
        self.deliver(true, guard, up);
        true
    }

    fn fetch(&self, _: &Guard) {}

    fn peek(&self) -> PollResult {
        match self.arrived.load(Ordering::Relaxed) {
            0 => PollResult::Nothing,
            _ => PollResult::Message,
        }
    }

    fn deliver(&self, all: bool, _: &Guard, _: &mut Upcalls) {
        let arrived = self.arrived.load(Ordering::Relaxed);
        let taken = if all { arrived } else { arrived.min(1) };
        self.arrived.fetch_sub(taken, Ordering::Relaxed);
        self.delivered.fetch_add(taken, Ordering::Relaxed);
    }

    fn last_served(&self) -> &LastServed {
        &self.served
    }

    fn set_notify_mode(&self, _: NotifyMode, _: &mut Upcalls) {}
}

/// Five thousand connections have ready bits, and a poll delivers to those whose bits are set, in rounds.
#[test]
fn thousands_are_served_by_their_bits() {
    const MANY: usize = 5000;
    let set = PollSet::new(take_bitmap);
    let entries: Vec<Arc<Counted>> = (0..MANY).map(|_| Arc::default()).collect();
    for entry in &entries {
        assert!(set.add(entry.clone()).is_some());
    }
    set.poll_and_adapt();
    let bitmap = set.bitmap_in_use().unwrap();
    let last = set.notify_mode(MANY - 1);
    assert_eq!(last, NotifyMode::Bitmap(bitmap.place(MANY as u32 - 1)));

    let busy = [(3, 1), (64, 3), (4095, 2), (4096, 70), (MANY - 1, 2)];
    for round in 1..=2 {
        for (place, messages) in busy {
            entries[place].arrived.store(messages, Ordering::Relaxed);
            bitmap.ready_bits.set(place as u32);
        }
        assert_eq!(set.poll(&pin()), PollOutcome::Arrived);
        for (place, entry) in entries.iter().enumerate() {
            let messages = busy.iter().find(|(other, _)| *other == place);
            let expected = messages.map_or(0, |(_, messages)| messages * round);
            assert_eq!(entry.delivered.load(Ordering::Relaxed), expected);
        }
        assert_eq!(set.poll(&pin()), PollOutcome::Nothing);
    }
    // A round delivers one message of each: the longest stream was served last.
    let last = entries
        .iter()
        .max_by_key(|entry| entry.served.get())
        .unwrap();
    assert!(Arc::ptr_eq(last, &entries[4096]));

    for entry in &entries {
        let entry: Entry = entry.clone();
        set.remove(&entry);
    }
    assert_eq!(set.chunks_used.load(Ordering::Relaxed), 0);
}
