//! Tests of poll sets, with connections that only count.

use std::sync::atomic::AtomicU64;

use super::*;
use crate::device::soft::engine::ready_bitmap::ReadyBits;
use crate::device::soft::engine::rounds::ROUNDS;
use crate::device::soft::transport::shm::take_bitmap;

/// A connection with messages that have arrived.
#[derive(Default)]
struct Counted {
    arrived: AtomicU64,
    /// Messages of which one arrives while another is delivered.
    late: AtomicU64,
    delivered: AtomicU64,
    /// Parts of the first message that are delivered before it is complete.
    parts: AtomicU64,
    served: LastServed,
    /// What peers do while a message is delivered.
    meanwhile: Mutex<Vec<Box<dyn FnOnce() + Send>>>,
    /// How often there was other work.
    progressed: AtomicU64,
    /// The bit that the peer sets whenever there was.
    again: Mutex<Option<(&'static ReadyBits, u32)>>,
    /// What others do while the notify mode of the connection is changed.
    at_change: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Counted {
    /// Delivers so many messages, or all that have arrived.
    fn take(&self, most: u64) {
        let taken = self.arrived.load(Ordering::Relaxed).min(most);
        self.arrived.fetch_sub(taken, Ordering::Relaxed);
        self.delivered.fetch_add(taken, Ordering::Relaxed);
    }
}

impl PollEntry for Counted {
    fn poll(&self, _: &Guard, _: &mut Upcalls) -> bool {
        self.take(u64::MAX);
        true
    }

    fn fetch(&self, _: &Guard) {}

    fn peek(&self) -> PollResult {
        match self.arrived.load(Ordering::Relaxed) {
            0 => PollResult::Nothing,
            _ => PollResult::Message,
        }
    }

    fn deliver(&self, _: &Guard, _: &mut Upcalls) -> bool {
        if self.parts.load(Ordering::Relaxed) > 0 {
            self.parts.fetch_sub(1, Ordering::Relaxed);
            self.arrived.fetch_sub(1, Ordering::Relaxed);
            return false;
        }
        self.take(1);
        if self.late.load(Ordering::Relaxed) > 0 {
            self.late.fetch_sub(1, Ordering::Relaxed);
            self.arrived.fetch_add(1, Ordering::Relaxed);
        }
        for peer in std::mem::take(&mut *self.meanwhile.lock()) {
            peer();
        }
        true
    }

    fn progress(&self, _: &Guard, _: &mut Upcalls) {
        self.progressed.fetch_add(1, Ordering::Relaxed);
        if let Some((bits, place)) = *self.again.lock() {
            bits.set(place);
        }
    }

    fn last_served(&self) -> &LastServed {
        &self.served
    }

    fn set_notify_mode(&self, _: NotifyMode, _: &mut Upcalls) {
        let others = self.at_change.lock().take();
        if let Some(others) = others {
            others();
        }
    }
}

/// A set of so many connections.
fn set_of(connections: usize) -> (PollSet, Vec<Arc<Counted>>) {
    let set = PollSet::new(take_bitmap);
    let entries: Vec<Arc<Counted>> = (0..connections).map(|_| Arc::default()).collect();
    for entry in &entries {
        assert!(set.add(entry.clone()).is_some());
    }
    (set, entries)
}

fn remove_all(set: &PollSet, entries: &[Arc<Counted>]) {
    for entry in entries {
        let entry: Entry = entry.clone();
        set.remove(&entry);
    }
}

/// Five thousand connections have ready bits, and a poll delivers to those whose bits are set, in rounds.
#[test]
fn thousands_are_served_by_their_bits() {
    const MANY: usize = 5000;
    let (set, entries) = set_of(MANY);
    let due = set.poll_and_adapt();
    assert!(due.check && !due.service);
    let bitmap = set.bitmap_in_use().unwrap();
    let last = set.notify_mode(MANY - 1);
    assert_eq!(last, NotifyMode::Bitmap(bitmap.place(MANY as u32 - 1)));

    let busy = [(3, 1), (64, 3), (4095, 2), (4096, 60), (MANY - 1, 2)];
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

    remove_all(&set, &entries);
    assert_eq!(set.chunks_used.load(Ordering::Relaxed), 0);
}

/// Messages that the rounds of one service leave are for the next one, so that those of no connection
/// overtake those of another; with an unpolled set a next service is due.
#[test]
fn what_is_left_is_for_the_next_service() {
    const MESSAGES: u64 = ROUNDS as u64 + 10;
    for connections in [2, FEW + 1] {
        let (set, entries) = set_of(connections);
        let delivered = |expected: [u64; 2]| {
            for (entry, expected) in entries.iter().zip(expected) {
                assert_eq!(entry.delivered.swap(0, Ordering::Relaxed), expected);
            }
        };
        let arrive = || {
            for (place, entry) in entries.iter().enumerate().take(2) {
                entry.arrived.store(MESSAGES, Ordering::Relaxed);
                if let Some(bitmap) = set.bitmap_in_use() {
                    bitmap.ready_bits.set(place as u32);
                }
            }
        };
        let _ = set.poll_and_adapt();
        assert_eq!(set.uses_bitmap(), connections > FEW);
        arrive();
        for expected in [ROUNDS as u64, 10] {
            assert_eq!(set.poll(&pin()), PollOutcome::Arrived);
            delivered([expected; 2]);
        }
        assert_eq!(set.poll(&pin()), PollOutcome::Nothing);

        arrive();
        let mut up = Upcalls::default();
        assert!(set.before_block().service);
        delivered([ROUNDS as u64; 2]);
        assert!(!set.after_service(&mut up).service);
        delivered([10; 2]);

        arrive();
        assert!(set.after_service(&mut up).service);
        assert!(!set.after_service(&mut up).service);
        delivered([MESSAGES; 2]);
        remove_all(&set, &entries);
    }
}

/// A message that arrives while its connection is served is delivered by the same service: its peer was told
/// to notify us before, and may do so only once.
#[test]
fn a_message_that_arrives_during_the_service() {
    for connections in [1, 2, FEW, FEW + 1] {
        let (set, entries) = set_of(connections);
        let _ = set.poll_and_adapt();
        let last = connections - 1;
        let arrive = || {
            entries[last].arrived.store(1, Ordering::Relaxed);
            entries[last].late.store(2, Ordering::Relaxed);
            if let Some(bitmap) = set.bitmap_in_use() {
                bitmap.ready_bits.set(last as u32);
            }
        };
        let delivered = || entries[last].delivered.swap(0, Ordering::Relaxed);
        arrive();
        assert!(!set.before_block().service);
        assert_eq!(delivered(), 3, "{connections}");
        arrive();
        assert!(!set.after_service(&mut Upcalls::default()).service);
        assert_eq!(delivered(), 3, "{connections}");
        remove_all(&set, &entries);
    }
}

/// While connections are served others are added, a message is sent to the last of them, and after it one to a
/// connection that is being served. They are delivered in this order.
#[test]
fn a_connection_that_is_added_during_the_service() {
    for (connections, added) in [(2, 1), (2, FEW), (FEW + 1, 1), (CHUNK, 1)] {
        let (set, entries) = set_of(connections);
        let set = Arc::new(set);
        let _ = set.poll_and_adapt();
        let others: Vec<Arc<Counted>> = (0..added).map(|_| Arc::default()).collect();
        let arrive = |set: &PollSet, place: usize, entry: &Counted| {
            entry.arrived.fetch_add(1, Ordering::Relaxed);
            if let Some(bitmap) = set.bitmap_in_use() {
                bitmap.ready_bits.set(place as u32);
            }
        };
        arrive(&set, 0, &entries[0]);
        let (peers_set, served, late) = (set.clone(), entries[0].clone(), others.clone());
        entries[0].meanwhile.lock().push(Box::new(move || {
            for entry in &late {
                assert!(peers_set.add(entry.clone()).is_some());
            }
            arrive(&peers_set, connections + added - 1, late.last().unwrap());
            arrive(&peers_set, 0, &served);
        }));
        while entries[0].delivered.load(Ordering::Relaxed) < 2 {
            if set.poll(&pin()) == PollOutcome::NeedsProgress {
                let _ = set.poll_and_adapt();
            }
        }
        let late = others.last().unwrap();
        assert_eq!(late.delivered.load(Ordering::Relaxed), 1);
        assert!(
            late.served.get() < entries[0].served.get(),
            "{added} more than {connections}"
        );
        remove_all(&set, &entries);
        remove_all(&set, &others);
    }
}

/// Sends a message to a connection; its place is noted when it is delivered.
fn send_noted(place: usize, entry: &Counted, order: &Arc<Mutex<Vec<usize>>>) {
    let order = order.clone();
    let note = move || order.lock().push(place);
    entry.meanwhile.lock().push(Box::new(note));
    entry.arrived.fetch_add(1, Ordering::Relaxed);
}

/// While the peers of all connections are told to set bits, a message is sent to one whose peer does not do so yet, and
/// after it one to a connection whose peer does. Another consumer that polls does not deliver the later one alone.
#[test]
fn peers_begin_to_set_bits_beside_a_poll() {
    let (set, mut entries) = set_of(FEW);
    let set = Arc::new(set);
    let _ = set.poll_and_adapt();
    entries.push(Arc::default());
    assert!(set.add(entries[FEW].clone()).is_some());
    let (first, last) = (0, FEW);
    set.clock.note(entries[first].last_served());
    let order: Arc<Mutex<Vec<usize>>> = Arc::default();
    let (peers, polled, noted) = (entries.clone(), set.clone(), order.clone());
    *entries[1].at_change.lock() = Some(Box::new(move || {
        let bits = polled.bitmap_in_use().unwrap().ready_bits;
        send_noted(last, &peers[last], &noted);
        send_noted(first, &peers[first], &noted);
        bits.set(first as u32);
        let _ = polled.poll(&pin());
    }));
    while order.lock().len() < 2 {
        let _ = set.poll_and_adapt();
    }
    assert_eq!(*order.lock(), [last, first]);
    remove_all(&set, &entries);
}

/// The same when they are told to set none any longer, beside a thread that serves those whose bits are set.
#[test]
fn peers_end_to_set_bits_beside_a_service() {
    let (set, mut entries) = set_of(FEW + 1);
    let set = Arc::new(set);
    let _ = set.poll_and_adapt();
    while set.poll(&pin()) == PollOutcome::Arrived {}
    let bits = set.bitmap_in_use().unwrap().ready_bits;
    let others = entries.split_off(FEW / 2);
    let (first, last, served) = (0, FEW / 2 - 1, 3);
    set.clock.note(entries[last].last_served());
    let order: Arc<Mutex<Vec<usize>>> = Arc::default();
    // The peer of the first one was told, and that of the last one was not.
    let (told, is_told) = std::sync::mpsc::channel();
    let (go_on, until) = std::sync::mpsc::channel();
    *entries[last].at_change.lock() = Some(Box::new(move || {
        let _ = told.send(());
        let _ = until.recv();
    }));
    let (adapts, adapted) = std::sync::mpsc::channel();
    let (peers, fewer, noted) = (entries.clone(), set.clone(), order.clone());
    entries[served].meanwhile.lock().push(Box::new(move || {
        remove_all(&fewer, &others);
        let _ = adapts.send(fewer);
        // Whoever waits for the end of the service has told nobody.
        let sets_none = is_told.recv_timeout(std::time::Duration::from_millis(100));
        send_noted(first, &peers[first], &noted);
        if sets_none.is_err() {
            bits.set(first as u32);
        }
        send_noted(last, &peers[last], &noted);
        bits.set(last as u32);
    }));
    // There is another round.
    entries[served].arrived.fetch_add(2, Ordering::Relaxed);
    bits.set(served as u32);
    std::thread::scope(|s| {
        s.spawn(move || {
            let set: Arc<PollSet> = adapted.recv().unwrap();
            let _ = set.poll_and_adapt();
        });
        let _ = set.poll(&pin());
        let _ = go_on.send(());
    });
    while order.lock().len() < 2 {
        let _ = set.poll_and_adapt();
    }
    assert!(!set.uses_bitmap());
    assert_eq!(*order.lock(), [first, last]);
    remove_all(&set, &entries);
}

/// A connection whose bit is set, though it has no message, does not deliver the message that arrives while others
/// are served, before one that had been sent to a connection whose bit was not set.
#[test]
fn a_bit_without_a_message() {
    let (set, entries) = set_of(FEW + 1);
    let _ = set.poll_and_adapt();
    let ready_bits = set.bitmap_in_use().unwrap().ready_bits;
    let send = move |place: usize, entry: &Counted| {
        entry.arrived.fetch_add(1, Ordering::Relaxed);
        ready_bits.set(place as u32);
    };
    let [busy, later, sooner] = [0, 2, 1].map(|place| (place, entries[place].clone()));
    // In the order in which they are served in a round: busy, sooner, later.
    for (place, entry) in [&busy, &sooner, &later] {
        send(*place, entry);
        assert_eq!(set.poll(&pin()), PollOutcome::Arrived);
    }
    ready_bits.set(later.0 as u32);
    send(busy.0, &busy.1);
    let order: Arc<Mutex<Vec<usize>>> = Arc::default();
    for (place, entry) in [&later, &sooner] {
        let (order, place) = (order.clone(), *place);
        let note = move || order.lock().push(place);
        entry.meanwhile.lock().push(Box::new(note));
    }
    busy.1.meanwhile.lock().push(Box::new(move || {
        send(sooner.0, &sooner.1);
        send(later.0, &later.1);
    }));
    while set.poll(&pin()) == PollOutcome::Arrived {}
    assert_eq!(*order.lock(), [1, 2]);
    remove_all(&set, &entries);
}

/// Of two connections that take turns, the one is first whose last message is the longer ago, also if a part of the
/// next one was delivered since.
#[test]
fn a_part_of_a_message_is_no_turn() {
    for connections in [2, FEW + 1] {
        let (set, entries) = set_of(connections);
        let _ = set.poll_and_adapt();
        while set.poll(&pin()) == PollOutcome::Arrived {}
        let ready_bits = set.bitmap_in_use().map(|bitmap| bitmap.ready_bits);
        let order: Arc<Mutex<Vec<usize>>> = Arc::default();
        let arrive = |place: usize| {
            entries[place].arrived.fetch_add(1, Ordering::Relaxed);
            if let Some(bits) = ready_bits {
                bits.set(place as u32);
            }
        };
        let serve = || assert_eq!(set.poll(&pin()), PollOutcome::Arrived);
        for place in [0, 1] {
            arrive(place);
            serve();
        }
        entries[0].parts.store(1, Ordering::Relaxed);
        arrive(0);
        serve();
        for place in [0, 1] {
            let order = order.clone();
            let note = move || order.lock().push(place);
            entries[place].meanwhile.lock().push(Box::new(note));
            arrive(place);
        }
        serve();
        assert_eq!(*order.lock(), [0, 1], "{connections}");
        remove_all(&set, &entries);
    }
}

/// A peer that sets its bit again and again, without a message, keeps nobody from those that have one.
#[test]
fn a_peer_that_only_sets_its_bit() {
    let (set, entries) = set_of(FEW + 1);
    let _ = set.poll_and_adapt();
    let ready_bits = set.bitmap_in_use().unwrap().ready_bits;
    while set.poll(&pin()) == PollOutcome::Arrived {}
    let [hostile, other] = [3, 7];
    *entries[hostile].again.lock() = Some((ready_bits, hostile as u32));
    entries[hostile].progressed.store(0, Ordering::Relaxed);
    entries[other].arrived.store(1, Ordering::Relaxed);
    ready_bits.set(hostile as u32);
    ready_bits.set(other as u32);
    assert_eq!(set.poll(&pin()), PollOutcome::Arrived);
    assert_eq!(entries[other].delivered.load(Ordering::Relaxed), 1);
    assert!(entries[hostile].progressed.load(Ordering::Relaxed) <= 2);
    *entries[hostile].again.lock() = None;
    remove_all(&set, &entries);
}

/// What has arrived before the peer of a connection begins to set its bit is found by the next poll.
#[test]
fn what_arrives_before_there_are_bits() {
    let (set, mut entries) = set_of(FEW + 1);
    entries[5].arrived.store(1, Ordering::Relaxed);
    let _ = set.poll_and_adapt();
    assert_eq!(entries[5].delivered.load(Ordering::Relaxed), 1);
    while set.poll(&pin()) == PollOutcome::Arrived {}

    let new = Arc::new(Counted::default());
    new.arrived.store(1, Ordering::Relaxed);
    assert!(set.add(new.clone()).is_some());
    assert_eq!(set.poll(&pin()), PollOutcome::Arrived);
    assert_eq!(new.delivered.load(Ordering::Relaxed), 1);
    entries.push(new);
    remove_all(&set, &entries);
}

/// The number of connections may come to ask for bits behind the last poll: what arrives then is delivered by the
/// check that finds that nobody polls, or by who blocks.
#[test]
fn nobody_polls_any_longer_when_there_are_many() {
    for blocks in [false, true] {
        let (set, mut entries) = set_of(FEW);
        let due = set.poll_and_adapt();
        assert!(due.check);
        let mut watch = PollWatch::default();
        let mut up = Upcalls::default();
        let _ = set.check_polls(&mut watch, &mut up);
        entries.push(Arc::default());
        assert!(set.add(entries[FEW].clone()).is_some());
        entries[0].arrived.store(1, Ordering::Relaxed);
        let mut left = match blocks {
            true => set.before_block(),
            false => set.check_polls(&mut watch, &mut up),
        };
        while left.check && set.polled.load(Ordering::SeqCst) {
            left = set.check_polls(&mut watch, &mut up);
        }
        assert!(!left.service && set.uses_bitmap());
        assert_eq!(entries[0].delivered.load(Ordering::Relaxed), 1, "{blocks}");
        up.run();
        remove_all(&set, &entries);
    }
}
