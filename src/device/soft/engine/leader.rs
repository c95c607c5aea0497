//! The seat of the thread that serves the device while it waits for something of its own.
//!
//! One blocked consumer at a time is the leader: it sleeps in the engine's epoll instance, so
//! what comes for it wakes it and nobody else. What it waits for may also happen in another way:
//! another thread posts the event, or serves the socket. Whoever makes it so calls the leader.
//!
//! The leader says that it sleeps and looks once more then; the other side does what it does
//! first and looks at the seat then. So one of them sees the other. A bell that was rung is
//! hushed by the leader that it was rung for, before it leaves the seat: nobody else touches it,
//! and none is left for the next one.

use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};

/// What wakes the leader from its sleep.
pub trait Bell {
    /// Ends the sleep of the leader, or its next one, until it is hushed.
    fn ring(&self);
    /// Takes the ringing back.
    fn hush(&self);
}

/// See the module.
pub struct Seat<B> {
    taken: AtomicBool,
    /// On what the leader sleeps, 0 while it does not.
    sleeper: AtomicUsize,
    /// Held while the bell is rung: who was called finds it rung.
    ringing: Mutex<()>,
    bell: B,
}

impl<B: Bell> Seat<B> {
    /// Empty.
    pub fn new(bell: B) -> Seat<B> {
        Seat {
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
        // A leader that is dropped gives the seat away: none is made in vain.
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

/// The one thread that has the seat, until this is dropped.
pub struct Leader<'a, B: Bell>(&'a Seat<B>);

impl<B: Bell> Leader<'_, B> {
    /// Sleeps on `what`, which is not 0, unless it is there already. `block` is to return when
    /// the bell rings.
    pub fn sleep<R>(
        &self,
        what: usize,
        is_there: impl FnOnce() -> bool,
        block: impl FnOnce() -> R,
    ) -> Option<R> {
        let seat = self.0;
        seat.sleeper.store(what, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let result = (!is_there()).then(block);
        if seat.sleeper.swap(0, Ordering::Relaxed) != what {
            drop(seat.ringing.lock());
            seat.bell.hush();
        }
        result
    }
}

impl<B: Bell> Drop for Leader<'_, B> {
    fn drop(&mut self) {
        self.0.taken.store(false, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    struct Silent;

    impl Bell for Silent {
        fn ring(&self) {}
        fn hush(&self) {}
    }

    #[test]
    fn one_at_a_time() {
        let seat = Seat::new(Silent);
        let leader = seat.take();
        assert!(leader.is_some());
        assert!(seat.take().is_none() && seat.take().is_none());
        drop(leader);
        assert!(seat.take().is_some());
    }

    #[test]
    fn a_leader_is_called_for_what_it_sleeps_on() {
        let seat = Seat::new(Silent);
        let leader = seat.take().unwrap();
        assert!(!seat.call(1));
        let called = leader.sleep(1, || false, || (seat.call(2), seat.call(1), seat.call(1)));
        assert_eq!(called, Some((false, true, false)));
        assert_eq!(leader.sleep(1, || true, || ()), None);
        assert!(!seat.call(1));
    }
}
