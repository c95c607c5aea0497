//! Where the state of a queue pair is, and under which lock.
//!
//! A queue pair alone, or with its peer in another process, has a lock domain of its own. Two
//! queue pairs that are connected within the process share one, so that one lock covers a
//! transfer. The place of a queue pair changes when it is connected or reset.

use std::ops::DerefMut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::cache_lines::{CacheLines, Place};
use super::link::Transport;
use super::state::QpState;
use crate::handle::{Biased, Guard, Held, Owned};

/// What the lock of a domain guards.
pub(crate) struct DomainState<L> {
    /// The queue pairs; the second place is taken within a pair only.
    pub states: [Option<Box<QpState>>; 2],
    /// The link of the queue pair, or the one between the two.
    pub link: L,
}

/// One lock, and the one or two queue pairs that it guards.
pub(super) struct LockDomain<L> {
    pub state: Biased<DomainState<L>>,
}

impl<L: Transport> LockDomain<L> {
    /// Without a queue pair.
    pub fn new() -> LockDomain<L> {
        LockDomain {
            state: Biased::new(DomainState {
                states: [None, None],
                link: L::default(),
            }),
        }
    }
}

/// The place of a queue pair: a lock domain, and which of its two states. As long as a connection
/// lasts the place does not change.
pub(crate) struct QpPlace<L> {
    pub(super) domain: Arc<LockDomain<L>>,
    pub(super) index: usize,
    /// Whether the domain is made for a pair: only then the peer may be in it.
    pub(super) paired: bool,
    /// Whether the last RDMA write was a mere copy. If not, the next one is hardly, and is not attempted so. Written
    /// with the lock held, and read without.
    writes_are_copies: AtomicBool,
    /// What an operation needs, noted while there are many connections.
    pub lines: CacheLines,
}

impl<L: Transport> QpPlace<L> {
    /// In that domain.
    pub(super) fn new(domain: Arc<LockDomain<L>>, index: usize, paired: bool) -> Arc<QpPlace<L>> {
        Arc::new(QpPlace {
            domain,
            index,
            paired,
            writes_are_copies: AtomicBool::new(false),
            lines: CacheLines::default(),
        })
    }

    /// Whether an attempt to make an RDMA write by a mere copy is worth it.
    #[inline(always)]
    pub fn writes_are_copies(&self) -> bool {
        self.writes_are_copies.load(Ordering::Relaxed)
    }

    /// An RDMA write was a mere copy, or not.
    #[inline(always)]
    pub fn note_write(&self, is_copy: bool) {
        // The cache line is left alone where nothing changes.
        if self.writes_are_copies() != is_copy {
            self.writes_are_copies.store(is_copy, Ordering::Relaxed);
        }
    }

    /// Notes what an operation needs: the state of the queue pair, and what a connection says that it is
    /// made of.
    #[cold]
    pub fn note_lines(&self, me: &QpState, [a, b, c, d]: [Place; 4]) {
        let (domain, id) = (Place::of(&*self.domain), Place::of(&*me.id));
        self.lines.note([domain, Place::of(me), id, a, b, c, d]);
    }

    /// Takes the lock.
    #[inline]
    pub fn lock<'a>(&'a self, guard: &'a Guard) -> DomainLock<'a, Held<'a, DomainState<L>>> {
        DomainLock {
            state: self.domain.state.lock_as(guard.thread()),
            index: self.index,
            guard,
        }
    }

    /// Takes the lock as its owner, if the thread is.
    #[inline(always)]
    pub fn own<'a>(
        &'a self,
        guard: &'a Guard,
    ) -> Option<DomainLock<'a, Owned<'a, DomainState<L>>>> {
        Some(DomainLock {
            state: self.domain.state.own(guard.thread())?,
            index: self.index,
            guard,
        })
    }

    /// [`QpPlace::own`] for a thread of which is known that it holds no such lock as its owner.
    ///
    /// # Safety
    /// As [`Biased::own_unmarked`].
    #[inline(always)]
    pub unsafe fn own_unmarked<'a>(
        &'a self,
        guard: &'a Guard,
    ) -> Option<DomainLock<'a, Owned<'a, DomainState<L>>>> {
        Some(DomainLock {
            // SAFETY: the caller's promise.
            state: unsafe { self.domain.state.own_unmarked(guard.thread()) }?,
            index: self.index,
            guard,
        })
    }
}

/// The lock of a domain, held at a place that the queue pair may have left.
pub(crate) struct DomainLock<'a, S> {
    state: S,
    index: usize,
    guard: &'a Guard,
}

impl<L, S: DerefMut<Target = DomainState<L>>> DomainLock<'_, S> {
    /// The queue pair of the place; `None` if it has left.
    #[inline(always)]
    pub fn locked(&mut self) -> Option<LockedQp<'_, L>> {
        let DomainState { states, link } = &mut *self.state;
        let (own, other) = (self.index & 1, self.index & 1 ^ 1);
        let states = states.as_mut_ptr();
        // SAFETY: 0 and 1 are both in the array, and not the same. Without a test of which is which.
        let (me, peer) = unsafe { (&mut *states.add(own), &mut *states.add(other)) };
        Some(LockedQp {
            me: me.as_deref_mut()?,
            peer: peer.as_deref_mut(),
            link,
            guard: self.guard,
        })
    }
}

/// A queue pair whose lock is held.
pub(crate) struct LockedQp<'a, L> {
    pub me: &'a mut QpState,
    /// The peer, if it is in the same lock domain.
    pub peer: Option<&'a mut QpState>,
    pub link: &'a mut L,
    pub guard: &'a Guard,
}
