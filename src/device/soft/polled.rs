//! What polling consumers look at directly: connections through shared memory.
//!
//! A connection is awake or asleep. While consumers poll, all are awake and their peers wake
//! nobody. Who stops polling leaves them to the thread: a consumer that blocks puts them to
//! sleep, and the thread does so when there was no poll for a while. A peer wakes the thread of
//! those that sleep. The thread itself never looks at connections on the chance that something
//! has come.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering, fence};

use parking_lot::Mutex;

use super::upcall::Upcalls;
use crate::handle::{Shared, pin::pin};

/// Connections that consumers look at. Others sleep all the time: a look costs a cache line.
const MOST: usize = 64;

/// Something to look at.
pub(super) trait Polled: Send + Sync {
    /// Serves it if something has come.
    fn poll(&self, up: &mut Upcalls);
    /// It is looked at from now on, or not any more.
    fn rouse(&self, awake: bool, up: &mut Upcalls);
}

/// See the module.
pub(super) struct PolledSet {
    list: Shared<Vec<Arc<dyn Polled>>>,
    /// Guards changes of the list.
    change: Mutex<()>,
    len: AtomicUsize,
    /// They have been made so last.
    awake: AtomicBool,
    /// Counts polls.
    looks: AtomicU32,
    /// The thread looks whether there are polls.
    ticking: AtomicBool,
}

impl Default for PolledSet {
    fn default() -> Self {
        PolledSet {
            list: Shared::empty(),
            change: Mutex::new(()),
            len: AtomicUsize::new(0),
            awake: AtomicBool::new(false),
            looks: AtomicU32::new(0),
            ticking: AtomicBool::new(false),
        }
    }
}

impl PolledSet {
    /// Looks at one more. True if it is to be awake: whoever puts the others to sleep from now
    /// on does so with this one.
    pub fn add(&self, polled: Arc<dyn Polled>) -> bool {
        let mut added = false;
        self.change(|list| {
            added = list.len() < MOST;
            if added {
                list.push(polled);
            }
        });
        added && self.awake.load(Ordering::SeqCst)
    }

    pub fn remove(&self, polled: &Arc<dyn Polled>) {
        self.change(|list| list.retain(|other| !Arc::ptr_eq(other, polled)));
    }

    fn change(&self, f: impl FnOnce(&mut Vec<Arc<dyn Polled>>)) {
        let _change = self.change.lock();
        let mut list = self.snapshot();
        f(&mut list);
        self.len.store(list.len(), Ordering::SeqCst);
        self.list.set(Some(Arc::new(list)));
    }

    fn snapshot(&self) -> Vec<Arc<dyn Polled>> {
        self.list.get(&pin()).cloned().unwrap_or_default()
    }

    fn rouse(&self, awake: bool) {
        let mut up = Upcalls::default();
        for polled in self.snapshot() {
            polled.rouse(awake, &mut up);
        }
        up.run();
    }

    /// Whether there is nothing to look at.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len.load(Ordering::Relaxed) == 0
    }

    /// A consumer polls. True if the thread has to be woken, to see when that ends.
    #[inline]
    pub fn look(&self) -> bool {
        if self.is_empty() {
            return false;
        }
        // Not more than one of several threads need count.
        let looks = self.looks.load(Ordering::Relaxed);
        self.looks.store(looks.wrapping_add(1), Ordering::Relaxed);
        let mut up = Upcalls::default();
        let guard = pin();
        if let Some(list) = self.list.get(&guard) {
            list.iter().for_each(|polled| polled.poll(&mut up));
        }
        drop(guard);
        up.run();
        if self.awake.load(Ordering::Relaxed) {
            return false;
        }
        self.rouse_all()
    }

    #[cold]
    fn rouse_all(&self) -> bool {
        self.awake.store(true, Ordering::SeqCst);
        self.rouse(true);
        fence(Ordering::SeqCst);
        // Either the thread has seen our look, or we see that it does not tick.
        !self.ticking.swap(true, Ordering::SeqCst)
    }

    /// A consumer is about to block.
    pub fn sleep(&self) {
        if self.awake.swap(false, Ordering::SeqCst) {
            self.rouse(false);
        }
    }

    /// Whether the thread is to call [`PolledSet::tick`] from time to time.
    pub fn is_ticking(&self) -> bool {
        self.ticking.load(Ordering::SeqCst)
    }

    /// Time has passed since the last call; `seen` is of that. All sleep if nobody has polled.
    pub fn tick(&self, seen: &mut u32) {
        self.ticking.store(false, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let looks = self.looks.load(Ordering::SeqCst);
        if looks != *seen {
            *seen = looks;
            self.ticking.store(true, Ordering::SeqCst);
            return;
        }
        self.awake.store(false, Ordering::SeqCst);
        self.rouse(false);
    }
}
