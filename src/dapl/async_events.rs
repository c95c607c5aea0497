//! Asynchronous errors: the EVDs of all open instances of an IA.
//!
//! Each async EVD of an IA is notified of all its asynchronous errors, whichever instance they are
//! of (`dat_ia_open`(3DAT)). An instance that was opened without one has its errors reported in
//! those of the others.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;

use super::types::{Event, Handle};
use crate::lock::Mutex;

/// An EVD that receives the asynchronous errors of an IA.
pub trait AsyncEvd: Send + Sync {
    /// The handle.
    fn handle(&self) -> Handle;
    /// Queues an asynchronous error. Wakes no thread, and calls no code of the consumer.
    fn queue(&self, event: Event);
    /// Wakes those that wait for the errors that were queued. The caller holds no lock.
    fn report(&self);
    /// An instance reports no more errors.
    fn detach(&self);
    /// Destroys the EVD.
    fn destroy(&self);
}

/// The async EVDs of an IA in this process.
#[derive(Default)]
pub struct AsyncEvds(Mutex<BTreeMap<usize, Shared>>);

/// An async EVD, and how many instances have it.
struct Shared {
    evd: Arc<dyn AsyncEvd>,
    instances: usize,
}

impl AsyncEvds {
    /// Enters the async EVD of an instance.
    pub fn add(&self, evd: &Arc<dyn AsyncEvd>) {
        let mut evds = self.0.lock();
        let entry = evds.entry(evd.handle().0.addr());
        let shared = entry.or_insert_with(|| Shared {
            evd: evd.clone(),
            instances: 0,
        });
        shared.instances += 1;
    }

    /// Removes the async EVD of an instance.
    pub fn remove(&self, evd: &dyn AsyncEvd) {
        let mut evds = self.0.lock();
        let key = evd.handle().0.addr();
        if let Some(shared) = evds.get_mut(&key) {
            shared.instances -= 1;
            if shared.instances == 0 {
                evds.remove(&key);
            }
        }
    }

    /// Calls `first`, which queues another event, and then queues an asynchronous error in each EVD,
    /// once. No other error comes between them: several objects have their errors in the order of
    /// these events. The caller calls [`report`](Self::report) when it holds no lock any more.
    pub fn queue_after<T>(&self, first: impl FnOnce() -> T, event: Event) -> T {
        let evds = self.0.lock();
        let result = first();
        for shared in evds.values() {
            shared.evd.queue(event);
        }
        result
    }

    /// Wakes those that wait for the errors that were queued. The caller holds no lock.
    pub fn report(&self) {
        let mut last = Unbounded;
        loop {
            // Copied, because a report may call the consumer's code. No list of all of them is made:
            // errors are reported also when there is no memory.
            let evds = self.0.lock();
            let next = evds.range((last, Unbounded)).next();
            let Some((key, evd)) = next.map(|(key, shared)| (*key, shared.evd.clone())) else {
                return;
            };
            drop(evds);
            evd.report();
            last = Excluded(key);
        }
    }
}
