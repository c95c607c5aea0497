//! Models of the board on which peers mark connections, under loom: every interleaving of the
//! sides, within a bound of preemptions. They run the code that ships; see `scripts/loom.sh`.
#![cfg(loom)]

use std::sync::Arc;

use dat_core::device::soft::engine::ready_bitmap::{OwnerState, ReadyBits};
use dat_core::device::soft::transport::shm::doorbell::{Doorbell, WakeOn};
use loom::sync::atomic::{AtomicU32, Ordering, fence};
use loom::sync::{Condvar, Mutex};
use loom::thread;

fn model(f: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    builder.check(f);
}

/// What comes over one connection: how much has come is all there is to it.
struct Line {
    came: AtomicU32,
    bell: Doorbell,
    /// 1: to be marked.
    slot: AtomicU32,
}

/// An owner with two connections.
struct Owner {
    said: OwnerState,
    marks: ReadyBits,
    lines: [Line; 2],
    /// Bytes in the sockets, and the kernel that waits for one.
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Owner {
    fn new(slot: u32) -> Arc<Owner> {
        let line = || Line {
            came: AtomicU32::new(0),
            bell: Doorbell::new(),
            slot: AtomicU32::new(slot),
        };
        Arc::new(Owner {
            said: OwnerState::new(),
            marks: ReadyBits::new(),
            lines: [line(), line()],
            rung: Mutex::new(false),
            changed: Condvar::new(),
        })
    }

    fn ring(&self) {
        *self.rung.lock().unwrap() = true;
        self.changed.notify_one();
    }

    fn wait(&self) {
        let mut rung = self.rung.lock().unwrap();
        while !*rung {
            rung = self.changed.wait(rung).unwrap();
        }
        *rung = false;
    }

    /// As a pipe that fills cells.
    fn produce(&self, place: usize, count: u32) {
        let line = &self.lines[place];
        let mut rung = 0;
        for number in 1..=count {
            line.came.store(number, Ordering::Release);
            if line.bell.is_due(WakeOn::CELLS) {
                self.ring();
            }
            if line.slot.load(Ordering::Acquire) == 0 {
                continue;
            }
            self.marks.set(place as u32);
            if let Some(sleep) = self.said.sleep_number()
                && rung != sleep
            {
                rung = sleep;
                self.ring();
            }
        }
    }

    /// Visits those that are marked.
    fn look(&self, got: &mut [u32; 2]) {
        let marks = self.marks.take(0);
        for (place, got) in got.iter_mut().enumerate() {
            if marks & 1 << place != 0 {
                *got = self.lines[place].came.load(Ordering::Acquire);
            }
        }
    }
}

/// The owner looks, sleeps, is woken and sleeps on, and has everything in the end.
fn sleeper(counts: [u32; 2]) {
    model(move || {
        let owner = Owner::new(1);
        let peers: Vec<_> = (0..2)
            .filter(|&place| counts[place] > 0)
            .map(|place| {
                let owner = owner.clone();
                thread::spawn(move || owner.produce(place, counts[place]))
            })
            .collect();
        let mut got = [0; 2];
        owner.look(&mut got);
        while got != counts {
            owner.said.sleep();
            owner.look(&mut got);
            if got != counts {
                owner.wait();
            }
        }
        peers.into_iter().for_each(|peer| peer.join().unwrap());
    });
}

#[test]
fn no_mark_of_one_peer_is_lost() {
    sleeper([3, 0]);
}

#[test]
fn no_mark_of_two_peers_is_lost() {
    sleeper([1, 1]);
}

/// An owner that sleeps, and then polls again.
#[test]
fn who_wakes_by_itself_misses_nothing() {
    model(|| {
        let owner = Owner::new(1);
        let peer = {
            let owner = owner.clone();
            thread::spawn(move || owner.produce(0, 2))
        };
        let mut got = [0; 2];
        owner.said.sleep();
        owner.look(&mut got);
        owner.said.wake();
        owner.look(&mut got);
        owner.said.sleep();
        owner.look(&mut got);
        while got[0] != 2 {
            owner.wait();
            owner.said.sleep();
            owner.look(&mut got);
        }
        peer.join().unwrap();
    });
}

/// A connection that was asleep is to be marked from now on.
#[test]
fn the_change_from_bells_to_marks() {
    model(|| {
        let owner = Owner::new(0);
        let line = &owner.lines[0];
        line.bell.arm(WakeOn::CELLS);
        let peer = {
            let owner = owner.clone();
            thread::spawn(move || owner.produce(0, 2))
        };
        owner.said.sleep();
        line.slot.swap(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        line.bell.disarm();
        let mut got = [line.came.load(Ordering::Acquire), 0];
        owner.said.sleep();
        owner.look(&mut got);
        while got[0] != 2 {
            owner.wait();
            owner.said.sleep();
            owner.look(&mut got);
        }
        peer.join().unwrap();
    });
}
