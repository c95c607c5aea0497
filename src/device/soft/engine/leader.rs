//! The slot of the thread that serves the device while it waits for something of its own.
//!
//! One blocked consumer at a time is the leader: it sleeps in the engine's epoll instance, so
//! that an arrival for the leader wakes the leader and no other thread. What the leader waits for
//! may also happen in another way: another thread posts the event, or serves the socket. That
//! thread wakes the leader.
//!
//! The leader first announces that it sleeps and then checks once more; the other thread first
//! does what the leader waits for and then reads the slot. So one of the two sees the other. The
//! leader that was woken clears the waker before it leaves the slot: no other thread does, and
//! the next leader does not find the waker set.

use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};

/// What wakes the leader from its sleep.
pub trait WakeLeader {
    /// Ends the sleep of the leader, and all its next ones until [`WakeLeader::clear`].
    fn wake(&self);
    /// Lets the leader sleep again.
    fn clear(&self);
}

/// The slot of the leader of an engine, with the waker `W`.
pub struct LeaderSlot<W> {
    /// Whether there is a leader.
    taken: AtomicBool,
    /// What the leader sleeps on; 0 while the leader does not sleep.
    sleeps_on: AtomicUsize,
    /// Whether the waker is set, for a leader that has not run since.
    woken: AtomicBool,
    /// Held while the leader is woken, so that a leader that finds itself woken finds the waker
    /// set.
    waking: Mutex<()>,
    /// What wakes the leader.
    waker: W,
}

impl<W: WakeLeader> LeaderSlot<W> {
    /// Without a leader.
    pub fn new(waker: W) -> LeaderSlot<W> {
        LeaderSlot {
            taken: AtomicBool::new(false),
            sleeps_on: AtomicUsize::new(0),
            woken: AtomicBool::new(false),
            waking: Mutex::new(()),
            waker,
        }
    }

    /// What wakes the leader.
    pub fn waker(&self) -> &W {
        &self.waker
    }

    /// Becomes the leader, if there is none.
    pub fn take(&self) -> Option<Leader<'_, W>> {
        // The drop of a leader frees the slot: none is made unless the slot was taken.
        (!self.taken.swap(true, Ordering::Acquire)).then(|| Leader(self))
    }

    /// Whether there is a leader.
    pub fn is_taken(&self) -> bool {
        self.taken.load(Ordering::Relaxed)
    }

    /// Whether the leader sleeps, and nothing that it waits for has happened.
    pub fn is_asleep(&self) -> bool {
        self.sleeps_on.load(Ordering::Relaxed) != 0
    }

    /// Whether the leader was woken and has not run since.
    pub fn is_woken(&self) -> bool {
        self.woken.load(Ordering::Acquire)
    }

    /// Wakes the leader if it sleeps on `what`, which has happened; false if the leader does not,
    /// or was woken already.
    pub fn wake(&self, what: usize) -> bool {
        // Orders what has happened before the read of what the leader sleeps on.
        fence(Ordering::SeqCst);
        if self.sleeps_on.load(Ordering::Relaxed) != what {
            return false;
        }
        let _waking = self.waking.lock();
        let (to, order) = (0, Ordering::Relaxed);
        let woken = self.sleeps_on.compare_exchange(what, to, order, order);
        if woken.is_ok() {
            self.woken.store(true, Ordering::Relaxed);
            self.waker.wake();
        }
        woken.is_ok()
    }
}

/// The one thread that has the slot, until this value is dropped.
pub struct Leader<'a, W: WakeLeader>(&'a LeaderSlot<W>);

impl<W: WakeLeader> Leader<'_, W> {
    /// Sleeps on `what`, which is not 0, unless it has happened. `block` is to return when the
    /// leader is woken.
    pub fn sleep<R>(
        &self,
        what: usize,
        has_happened: impl FnOnce() -> bool,
        block: impl FnOnce() -> R,
    ) -> Option<R> {
        let slot = self.0;
        slot.sleeps_on.store(what, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let result = (!has_happened()).then(block);
        if slot.sleeps_on.swap(0, Ordering::Relaxed) != what {
            drop(slot.waking.lock());
            slot.waker.clear();
            slot.woken.store(false, Ordering::Release);
        }
        result
    }
}

impl<W: WakeLeader> Drop for Leader<'_, W> {
    fn drop(&mut self) {
        self.0.taken.store(false, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    struct Silent;

    impl WakeLeader for Silent {
        fn wake(&self) {}
        fn clear(&self) {}
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
    fn a_leader_is_woken_for_what_it_sleeps_on() {
        let slot = LeaderSlot::new(Silent);
        let leader = slot.take().unwrap();
        assert!(!slot.wake(1));
        let woken = leader.sleep(1, || false, || (slot.wake(2), slot.wake(1), slot.wake(1)));
        assert_eq!(woken, Some((false, true, false)));
        assert_eq!(leader.sleep(1, || true, || ()), None);
        let state = || (slot.is_asleep(), slot.is_woken());
        let states = leader.sleep(1, || false, || (state(), slot.wake(1), state()));
        assert_eq!(states, Some(((true, false), true, (false, true))));
        assert_eq!(state(), (false, false));
        assert!(!slot.wake(1));
    }
}
