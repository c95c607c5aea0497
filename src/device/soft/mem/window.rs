//! Memory windows.
//!
//! An open window is a key of its own in the table of regions ([`keys`](crate::device::soft::mem::key_table)), which names
//! the region behind it. A bind reserves the new key when it is posted and exchanges the keys
//! when it executes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;

use super::key_table::{Opening, Region, Reserved, WindowKey};
use crate::device::{Access, BindWr, MemoryWindow, PostError};
use crate::handle::{Guard, pin};

/// Windows of one device.
pub(crate) const MAX_MW: u32 = 1 << 16;

enum State {
    Open(#[expect(dead_code, reason = "held to be dropped")] WindowKey),
    /// Never bound, or bound to nothing.
    Shut,
    /// For good.
    Closed,
}

/// A memory window.
pub struct Mw {
    pd: u32,
    state: Mutex<State>,
    /// Windows of the device, to give back.
    count: Arc<AtomicU32>,
}

impl Mw {
    /// `count` has counted it already.
    pub(crate) fn new(pd: u32, count: Arc<AtomicU32>) -> Arc<Mw> {
        Arc::new(Mw {
            pd,
            state: Mutex::new(State::Shut),
            count,
        })
    }
}

impl MemoryWindow for Mw {
    fn close(&self) {
        let old = std::mem::replace(&mut *self.state.lock(), State::Closed);
        drop(old);
        pin::synchronize();
    }
}

impl Drop for Mw {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A bind in a send queue. A drop gives it up.
pub(crate) struct Bind {
    window: Arc<Mw>,
    /// The new key and the region behind it; `None` shuts the window.
    opens: Option<(Reserved, Region)>,
}

impl Bind {
    /// # Errors
    /// [`PostError::QueueFull`] if there are no more keys.
    pub fn new(wr: &BindWr<'_, crate::device::soft::Soft>) -> Result<Bind, PostError> {
        let opens = match wr.region {
            None => None,
            Some(region) => {
                let region = region.region();
                let reserved = Reserved::new(&Opening {
                    pd: wr.window.pd,
                    addr: wr.addr,
                    len: wr.len,
                    access: wr.access & (Access::REMOTE_READ | Access::REMOTE_WRITE),
                    region: Some(region),
                    mapped: region.mapped_range(),
                });
                Some((reserved.ok_or(PostError::QueueFull)?, region))
            }
        };
        Ok(Bind {
            window: wr.window.clone(),
            opens,
        })
    }

    /// The key the window will have; 0 if it will have none.
    pub fn key(&self) -> u32 {
        self.opens.as_ref().map_or(0, |(key, _)| key.key())
    }

    /// Exchanges the keys; false if the region is gone. A window that was closed stays so.
    pub fn execute(self, guard: &Guard) -> bool {
        let mut state = self.window.state.lock();
        if matches!(*state, State::Closed) {
            return true;
        }
        let new = match self.opens {
            None => State::Shut,
            Some((_, region)) if !region.is_alive(guard) => return false,
            Some((key, _)) => State::Open(key.publish()),
        };
        let old = std::mem::replace(&mut *state, new);
        drop(state);
        drop(old);
        true
    }
}
