//! What a window is bound to, as far as that is known.

use std::collections::TryReserveError;
use std::sync::Arc;

use crate::abi::common::DAT_MEM_PRIV_FLAGS;
use crate::dapl::lmr::{Lmr, LmrUse};
use crate::dapl::types::{Handle, LmrRange};
use crate::device::{Addressing, Device, MemoryWindow, WindowOpening};

/// The range that a window is bound to.
pub(super) struct Binding<D: Device> {
    /// The range, by the addresses of the LMR.
    pub range: LmrRange,
    /// How peers name its bytes.
    pub addressing: Addressing,
    pub privileges: DAT_MEM_PRIV_FLAGS,
    pub rmr_context: u32,
    /// The endpoint on which the window was bound.
    pub ep: Handle,
    pub lmr: Arc<Lmr<D>>,
    /// Keeps the region from being freed, for the last of the bindings of a window.
    pub lmr_use: Option<LmrUse<D>>,
}

impl<D: Device> Binding<D> {
    /// Uses the region; false if that is freed.
    fn hold(&mut self) -> bool {
        if self.lmr_use.is_none() {
            self.lmr_use = LmrUse::begin(self.lmr.clone()).ok();
        }
        self.lmr_use.is_some()
    }
}

/// What a window was bound to last, and what the binds that may be under way since will bind it to, in
/// their order; `None` is an unbind. Only the last one uses its region.
pub(super) struct Bindings<D: Device>(Vec<Option<Binding<D>>>);

impl<D: Device> Default for Bindings<D> {
    fn default() -> Self {
        Bindings(Vec::new())
    }
}

impl<D: Device> Bindings<D> {
    /// Forgets what the window is not bound to any more: a bind may have been flushed, and a peer may have
    /// invalidated the key.
    pub fn settle(&mut self, window: &D::Mw) {
        let key = match window.opening() {
            WindowOpening::Open(key) => key,
            // What it is bound to meanwhile is that of one bind before those, at most.
            WindowOpening::Binding(binds) => return self.keep_last(binds as usize + 1),
            WindowOpening::Unknown => return self.keep_last(1),
        };
        let is_open = |b: &Option<Binding<D>>| b.as_ref().is_some_and(|b| b.rmr_context == key);
        self.0.retain(is_open);
        if let Some(Some(binding)) = self.0.last_mut()
            && !binding.hold()
        {
            self.0.clear();
        }
    }

    /// Forgets all but so many, the newest ones.
    fn keep_last(&mut self, most: usize) {
        let surplus = self.0.len().saturating_sub(most);
        self.0.drain(..surplus);
    }

    /// Makes room for one more.
    ///
    /// # Errors
    /// There is no memory.
    pub fn reserve(&mut self) -> Result<(), TryReserveError> {
        self.0.try_reserve(1)
    }

    /// A bind was posted, for which there is [room](Bindings::reserve).
    pub fn posted(&mut self, binding: Option<Binding<D>>) {
        if let Some(Some(before)) = self.0.last_mut() {
            before.lmr_use = None;
        }
        self.0.push(binding);
    }

    /// What the window is bound to when all binds are executed.
    pub fn last(&self) -> Option<&Binding<D>> {
        self.0.last()?.as_ref()
    }
}
