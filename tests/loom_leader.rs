//! A model of how the leader, who serves a device while it waits, is called, under loom; see
//! `scripts/loom.sh`.
#![cfg(loom)]

use std::sync::Arc;

use dat_core::device::soft::engine::leader::{LeaderSlot, WakeLeader};
use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use loom::sync::{Condvar, Mutex};
use loom::thread;

fn model(f: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    builder.check(f);
}

/// The kernel: a bell that rings until it is hushed, and sleepers that it wakes.
#[derive(Default)]
struct Kernel {
    rings: Mutex<bool>,
    changed: Condvar,
}

impl Kernel {
    fn sleep(&self) {
        let mut rings = self.rings.lock().unwrap();
        while !*rings {
            rings = self.changed.wait(rings).unwrap();
        }
    }
}

impl WakeLeader for Kernel {
    fn ring(&self) {
        *self.rings.lock().unwrap() = true;
        self.changed.notify_all();
    }

    fn hush(&self) {
        // Whoever hushes was called, so it rings.
        assert!(std::mem::take(&mut *self.rings.lock().unwrap()));
    }
}

struct Shared {
    slot: LeaderSlot<Kernel>,
    words: [AtomicU32; 2],
    /// There is a leader.
    led: AtomicBool,
}

impl Shared {
    fn new() -> Arc<Shared> {
        Arc::new(Shared {
            slot: LeaderSlot::new(Kernel::default()),
            words: [AtomicU32::new(0), AtomicU32::new(0)],
            led: AtomicBool::new(false),
        })
    }

    /// Sleeps until the word is what it is to be, as the leader.
    fn lead(&self, which: usize, until: u32) -> bool {
        let Some(leader) = self.slot.take() else {
            return false;
        };
        assert!(!self.led.swap(true, Ordering::Relaxed));
        let is_there = || self.words[which].load(Ordering::SeqCst) >= until;
        while !is_there() {
            let kernel = self.slot.bell();
            leader.sleep(which + 1, is_there, || kernel.sleep());
        }
        self.led.store(false, Ordering::Relaxed);
        true
    }

    fn happens(&self, which: usize) -> bool {
        self.words[which].fetch_add(1, Ordering::SeqCst);
        self.slot.call(which + 1)
    }
}

/// Nothing that happens is missed, and no bell is left for the next leader.
#[test]
fn the_leader_is_called() {
    model(|| {
        let shared = Shared::new();
        let other = shared.clone();
        let caller = thread::spawn(move || {
            other.happens(0);
            other.happens(0);
        });
        assert!(shared.lead(0, 1));
        assert!(shared.lead(0, 2));
        caller.join().unwrap();
        assert!(!*shared.slot.bell().rings.lock().unwrap());
    });
}

/// Two who have something for the leader wake it once for each sleep.
#[test]
fn two_call_at_a_time() {
    model(|| {
        let shared = Shared::new();
        let callers = [0, 0].map(|which| {
            let other = shared.clone();
            thread::spawn(move || other.happens(which))
        });
        assert!(shared.lead(0, 2));
        for caller in callers {
            caller.join().unwrap();
        }
        assert!(!*shared.slot.bell().rings.lock().unwrap());
    });
}

/// What happens to somebody else does not concern the leader, and who finds the slot taken does
/// not get it.
#[test]
fn one_leader_at_a_time() {
    model(|| {
        let shared = Shared::new();
        let other = shared.clone();
        let guest = thread::spawn(move || {
            let led = other.lead(1, 1) || other.lead(1, 1);
            other.happens(0);
            led
        });
        shared.happens(1);
        let led = shared.lead(0, 1);
        let guest_led = guest.join().unwrap();
        assert!(led || guest_led);
        assert!(!*shared.slot.bell().rings.lock().unwrap());
    });
}
