//! A model of how the leader, who serves a device while it waits, is woken, under loom; see
//! `scripts/loom.sh`.
#![cfg(loom)]

mod model;

use std::sync::Arc;

use dat_core::testing::device::soft::engine::leader::{LeaderSlot, WakeLeader};
use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use loom::sync::{Condvar, Mutex};
use loom::thread;

use model::model;

/// The kernel: a waker that stays set until it is cleared, and threads that sleep until it is set.
#[derive(Default)]
struct Kernel {
    set: Mutex<bool>,
    changed: Condvar,
}

impl Kernel {
    fn sleep(&self) {
        let mut set = self.set.lock().unwrap();
        while !*set {
            set = self.changed.wait(set).unwrap();
        }
    }
}

impl WakeLeader for Kernel {
    fn wake(&self) {
        *self.set.lock().unwrap() = true;
        self.changed.notify_all();
    }

    fn clear(&self) {
        // A leader that clears the waker was woken, so the waker is set.
        assert!(std::mem::take(&mut *self.set.lock().unwrap()));
    }
}

struct Shared {
    slot: LeaderSlot<Kernel>,
    words: [AtomicU32; 2],
    /// Whether there is a leader.
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
        let has_happened = || self.words[which].load(Ordering::SeqCst) >= until;
        while !has_happened() {
            let kernel = self.slot.waker();
            leader.sleep(which + 1, has_happened, || kernel.sleep());
        }
        self.led.store(false, Ordering::Relaxed);
        true
    }

    /// No leader is there or being woken.
    fn expect_awake(&self) {
        assert!(!self.slot.is_asleep() && !self.slot.is_woken());
        assert!(!*self.slot.waker().set.lock().unwrap());
    }

    fn happens(&self, which: usize) -> bool {
        self.words[which].fetch_add(1, Ordering::SeqCst);
        self.slot.wake(which + 1)
    }
}

/// Nothing that happens is missed, and the next leader does not find the waker set.
#[test]
fn the_leader_is_woken() {
    model(|| {
        let shared = Shared::new();
        let other = shared.clone();
        let waking = thread::spawn(move || {
            other.happens(0);
            other.happens(0);
        });
        assert!(shared.lead(0, 1));
        assert!(shared.lead(0, 2));
        waking.join().unwrap();
        shared.expect_awake();
    });
}

/// Two threads that have something for the leader wake it once for each sleep.
#[test]
fn two_wake_at_a_time() {
    model(|| {
        let shared = Shared::new();
        let others = [0, 0].map(|which| {
            let other = shared.clone();
            thread::spawn(move || other.happens(which))
        });
        assert!(shared.lead(0, 2));
        for other in others {
            other.join().unwrap();
        }
        shared.expect_awake();
    });
}

/// What another thread waits for does not wake the leader, and a thread that finds the slot taken
/// does not get it.
#[test]
fn one_leader_at_a_time() {
    model(|| {
        let shared = Shared::new();
        let other = shared.clone();
        let contender = thread::spawn(move || {
            let led = other.lead(1, 1) || other.lead(1, 1);
            other.happens(0);
            led
        });
        shared.happens(1);
        let led = shared.lead(0, 1);
        let contender_led = contender.join().unwrap();
        assert!(led || contender_led);
        shared.expect_awake();
    });
}
