//! The slot of the thread that serves the device while it waits for something of its own.
//!
//! One blocked consumer at a time is the leader: it sleeps in the engine's epoll instance, so
//! what comes for it wakes it and nobody else. What it waits for may also happen in another way:
//! another thread posts the event, or serves the socket. Whoever makes it so calls the leader.
//!
//! The leader says that it sleeps and looks once more then; the other side does what it does
//! first and looks at the slot then. So one of them sees the other. A bell that was rung is
//! hushed by the leader that it was rung for, before it leaves the slot: nobody else touches it,
//! and none is left for the next one.

use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};

/// What wakes the leader from its sleep.
pub trait WakeLeader {
    /// Ends the sleep of the leader, or its next one, until it is hushed.
    fn ring(&self);
    /// Takes the ringing back.
    fn hush(&self);
}

/// See the module.
pub struct LeaderSlot<B> {
    taken: AtomicBool,
    /// On what the leader sleeps, 0 while it does not.
    sleeper: AtomicUsize,
    /// Held while the bell is rung: who was called finds it rung.
    ringing: Mutex<()>,
    bell: B,
}

impl<B: WakeLeader> LeaderSlot<B> {
    /// Empty.
    pub fn new(bell: B) -> LeaderSlot<B> {
        LeaderSlot {
            taken: AtomicBool::new(false),
            sleeper: AtomicUsize::new(0),
            ringing: Mutex::new(()),
            bell,
        }
    }

    /// What wakes the leader.
    pub fn bell(&self) -> &B {
        &self.bell
    }

    /// Becomes the leader, if there is none.
    pub fn take(&self) -> Option<Leader<'_, B>> {
        // A leader that is dropped gives the slot away: none is made in vain.
        (!self.taken.swap(true, Ordering::Acquire)).then(|| Leader(self))
    }

    /// Calls the leader if it sleeps on `what`, which has happened; false if it does not, or was
    /// called already.
    pub fn call(&self, what: usize) -> bool {
        // Between what has happened and the look whether somebody sleeps.
        fence(Ordering::SeqCst);
        if self.sleeper.load(Ordering::Relaxed) != what {
            return false;
        }
        let _ringing = self.ringing.lock();
        let (to, order) = (0, Ordering::Relaxed);
        let called = self.sleeper.compare_exchange(what, to, order, order);
        if called.is_ok() {
            self.bell.ring();
        }
        called.is_ok()
    }
}

/// The one thread that has the slot, until this is dropped.
pub struct Leader<'a, B: WakeLeader>(&'a LeaderSlot<B>);

impl<B: WakeLeader> Leader<'_, B> {
    /// Sleeps on `what`, which is not 0, unless it is there already. `block` is to return when
    /// the bell rings.
    pub fn sleep<R>(
        &self,
        what: usize,
        is_there: impl FnOnce() -> bool,
        block: impl FnOnce() -> R,
    ) -> Option<R> {
        let slot = self.0;
        slot.sleeper.store(what, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let result = (!is_there()).then(block);
        if slot.sleeper.swap(0, Ordering::Relaxed) != what {
            drop(slot.ringing.lock());
            slot.bell.hush();
        }
        result
    }
}

impl<B: WakeLeader> Drop for Leader<'_, B> {
    fn drop(&mut self) {
        self.0.taken.store(false, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    struct Silent;

    impl WakeLeader for Silent {
        fn ring(&self) {}
        fn hush(&self) {}
    }

    #[test]
    fn one_at_a_time() {
        let slot = LeaderSlot::new(Silent);
        let leader = slot.take();
        assert!(leader.is_some());
        assert!(slot.take().is_none() && slot.take().is_none());
        drop(leader);
        assert!(slot.take().is_some());
    }

    #[test]
    fn a_leader_is_called_for_what_it_sleeps_on() {
        let slot = LeaderSlot::new(Silent);
        let leader = slot.take().unwrap();
        assert!(!slot.call(1));
        let called = leader.sleep(1, || false, || (slot.call(2), slot.call(1), slot.call(1)));
        assert_eq!(called, Some((false, true, false)));
        assert_eq!(leader.sleep(1, || true, || ()), None);
        assert!(!slot.call(1));
    }
}
