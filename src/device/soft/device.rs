//! What the parts of an open device share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::bad_keys::BadKeys;
use super::engine::Engine;
use super::params::Params;
use super::turns::Turns;
use crate::device::{DeviceAttr, DeviceError};

/// Numbers of the objects of a device that exist.
#[derive(Default)]
pub(super) struct Counts {
    /// Queue pairs.
    pub qp: AtomicU32,
    /// Completion queues.
    pub cq: Arc<AtomicU32>,
    /// Shared receive queues.
    pub srq: Arc<AtomicU32>,
    /// Memory windows.
    pub mw: Arc<AtomicU32>,
    /// Protection domains.
    pub pd: AtomicU32,
}

/// Counts an object, unless there are `max` of them.
pub(super) fn count(counter: &AtomicU32, max: u32) -> Result<(), DeviceError> {
    counter
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| {
            (n < max).then_some(n + 1)
        })
        .map(|_| ())
        .map_err(|_| DeviceError::Resources)
}

/// An open soft device. What it can do stands in the module above.
pub struct Soft {
    /// The parameters of the entry.
    pub(super) params: Params,
    /// How long a consumer that waits polls before it blocks.
    pub(super) spin: Duration,
    /// The attributes that consumers can query.
    pub(super) attr: DeviceAttr,
    /// Numbers of the objects that exist.
    pub(super) counts: Counts,
    /// The peers that have used keys which are not valid.
    pub(super) bad_keys: Arc<BadKeys>,
    /// Which attempts have a handshake with a process of this host.
    pub(super) turns: Turns,
    /// What serves the sockets and timers.
    pub(super) engine: Engine,
}

#[cfg(dat_sim)]
impl Soft {
    /// What is left in the engine.
    pub fn remains(&self) -> super::engine::Remains {
        self.engine.remains()
    }

    /// What the thread of the engine does when it is woken, once.
    pub fn serve_once(&self) {
        self.engine.serve_once();
    }
}
