//! Memory windows.
//!
//! An open window is a key of its own in the [key table](super::key_table), whose entry names the
//! region that the window is bound to. A bind reserves the new key when it is posted, and exchanges
//! the keys when it executes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::lock::Mutex;

use super::key_entry::Origin;
use super::key_table::{Opening, Region, Reserved, WindowKey};
use super::region::Mr;
use crate::device::{
    Access, Addressing, BindWr, Device, MemoryWindow, PostError, WindowOpening, WindowScope,
};
use crate::handle::{Guard, pin};

/// Number of windows of one device at most.
pub(crate) const MAX_MW: u32 = 1 << 16;

enum State {
    /// Bound to a region, with these rights.
    Open(WindowKey, Access),
    /// Never bound, or bound to nothing.
    Shut,
    /// Closed by the consumer: further binds have no effect.
    Closed,
}

/// A memory window.
pub struct Mw {
    /// The protection domain.
    pd: u32,
    /// Who may use the window.
    scope: WindowScope,
    /// What the window is bound to.
    state: Mutex<State>,
    /// Number of binds that are neither executed nor given up.
    binds: AtomicU32,
    /// Number of windows of the device, this one included.
    count: Arc<AtomicU32>,
}

impl Mw {
    /// A window that is not bound, and that `count` has counted already.
    pub(crate) fn new(pd: u32, scope: WindowScope, count: Arc<AtomicU32>) -> Arc<Mw> {
        Arc::new(Mw {
            pd,
            scope,
            state: Mutex::new(State::Shut),
            binds: AtomicU32::new(0),
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

    fn opening(&self) -> WindowOpening {
        let state = self.state.lock();
        // A bind counts until its outcome is in the state.
        match (self.binds.load(Ordering::Acquire), &*state) {
            (0, State::Open(key, rights)) if key.has(*rights) => WindowOpening::Open(key.key()),
            (0, State::Open(..) | State::Shut | State::Closed) => WindowOpening::Open(0),
            (binds, _) => WindowOpening::Binding(binds),
        }
    }
}

impl Drop for Mw {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The window of a bind that is under way.
struct Bound(Arc<Mw>);

impl Bound {
    fn new(window: Arc<Mw>) -> Bound {
        window.binds.fetch_add(1, Ordering::Relaxed);
        Bound(window)
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        self.0.binds.fetch_sub(1, Ordering::Release);
    }
}

/// A bind in a send queue. Dropping the bind gives the new key up.
pub(crate) struct Bind {
    /// The window.
    window: Bound,
    /// The new key, the region to bind to and the rights; `None` if the window is to be unbound.
    opens: Option<(Reserved, Region, Access)>,
}

impl Bind {
    /// Reserves the new key. `qp` is the number of the queue pair in keys for it alone.
    ///
    /// # Errors
    /// [`PostError::QueueFull`] if no key is left, [`PostError::Bounds`] if the region has no such
    /// address.
    pub fn new<D: Device<Mr = Mr, Mw = Mw>>(
        wr: &BindWr<'_, D>,
        qp: u32,
    ) -> Result<Bind, PostError> {
        let opens = match wr.region {
            None => None,
            Some(region) => {
                let (addr, addressing) = (region.in_memory(wr.addr), region.addressing());
                let region = region.region();
                let access = wr.access & Access::REMOTE;
                let reserved = Reserved::new(&Opening {
                    pd: match wr.window.scope {
                        WindowScope::Domain => wr.window.pd,
                        WindowScope::QueuePair => qp,
                    },
                    addr: addr.ok_or(PostError::Bounds)?,
                    len: wr.len,
                    origin: match (wr.addressing, addressing) {
                        (Addressing::ZeroBased, _) => Origin::Range,
                        (Addressing::Virtual, Addressing::Virtual) => Origin::Memory,
                        (Addressing::Virtual, Addressing::ZeroBased) => Origin::Region,
                    },
                    access,
                    promotable: false,
                    region: Some(region),
                    mapped: region.mapped_range(),
                });
                Some((reserved.ok_or(PostError::QueueFull)?, region, access))
            }
        };
        Ok(Bind {
            window: Bound::new(wr.window.clone()),
            opens,
        })
    }

    /// The key that the window will have; 0 if the window is to be unbound.
    pub fn key(&self) -> u32 {
        self.opens.as_ref().map_or(0, |(key, ..)| key.key())
    }

    /// Exchanges the keys; false if the region is not registered any more. A closed window stays
    /// closed.
    pub fn execute(self, guard: &Guard) -> bool {
        let mut state = self.window.0.state.lock();
        if matches!(*state, State::Closed) {
            return true;
        }
        let new = match self.opens {
            None => State::Shut,
            Some((_, region, _)) if !region.is_alive(guard) => return false,
            Some((key, _, rights)) => State::Open(key.publish(), rights),
        };
        let old = std::mem::replace(&mut *state, new);
        drop(state);
        drop(old);
        true
    }
}
