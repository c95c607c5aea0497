//! Memory windows.
//!
//! Type 2 windows are preferred, since peers can invalidate them. A device refuses to bind a window
//! that is bound, and reports an error if a window is invalidated that a peer has just invalidated.
//! So every bind binds a new window of the device, and the one before is destroyed when the bind has
//! completed. That is also the order that the consumer is promised, and a bind that is flushed
//! changes nothing. A window is closed in the order of the queue by the bind of a new window of the
//! device to a region that no peer has a key of.
//!
//! A type 2 window belongs to the queue pair it was bound on and closes with it.

use std::collections::BTreeMap;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use crate::lock::Mutex;

use super::mr::Pd;
use super::post::{Ready, Request, send as send_request};
use super::qp::Qp;
use super::ring::{Kind, PostedWr};
use super::windows::Windows;
use super::wr_table::Numbered;
use super::{Verbs, sys};
use crate::cancel::Disabled;
use crate::device::{
    Addressing, BindWr, DeviceError, MemoryWindow, PostError, WindowOpening, WrFlags,
};
use crate::handle::pin::pin;

/// A window of the device. Dropping it closes it.
struct HwWindow {
    pd: Arc<Pd>,
    mw: *mut sys::Mw,
    /// Number of the queue pair on which the window is bound.
    qp_number: u64,
    /// The key under which the window is bound.
    bound_key: u32,
}

// SAFETY: libibverbs is thread-safe, and the window is valid until the drop.
unsafe impl Send for HwWindow {}

impl HwWindow {
    fn new(device: &Verbs, pd: &Arc<Pd>, kind: i32) -> Option<HwWindow> {
        // Binds make some.
        let _disabled = Disabled::begin();
        // SAFETY: the context is open, the domain valid.
        let mw = unsafe { (*device.adapter.ctx).ops.alloc_mw?(pd.raw, kind) };
        (!mw.is_null()).then(|| HwWindow {
            pd: pd.clone(),
            mw,
            qp_number: 0,
            bound_key: 0,
        })
    }

    fn key(&self) -> u32 {
        // SAFETY: the window is valid.
        unsafe { (*self.mw).rkey }
    }
}

impl Drop for HwWindow {
    fn drop(&mut self) {
        // Polls drop some, with the completions of binds.
        let _disabled = Disabled::begin();
        // SAFETY: ours.
        unsafe {
            if let Some(dealloc) = (*(*self.mw).context).ops.dealloc_mw {
                dealloc(self.mw);
            }
        }
    }
}

/// A memory window.
pub struct Mw {
    pd: Arc<Pd>,
    /// The device has windows of type 2.
    is_type2: bool,
    /// Binds that have not completed.
    binds: AtomicU32,
    state: Mutex<State>,
}

struct State {
    /// Type 2: the window of the device that is bound. Type 1: the one that there is.
    current: Option<HwWindow>,
    /// Type 2: the key under which the window was bound last; 0 if a peer has invalidated that, or it was bound to
    /// nothing. The end of the connection changes nothing of it.
    bound_key: u32,
    /// The consumer has freed the window.
    closed: bool,
}

/// A bind that has not completed.
pub(super) struct Bind {
    /// As in [`BindWr`].
    pub context: u64,
    /// The window of the consumer.
    pub window: Arc<Mw>,
    /// Type 2: the window of the device that replaces the current one.
    new_window: Option<HwWindow>,
    /// The window is bound to a region of the consumer.
    opens: bool,
}

impl Bind {
    /// The completion of the bind is to change nothing.
    pub fn cancel(&mut self) {
        self.new_window = None;
    }

    /// The key under which the window is bound, of type 2.
    pub fn key(&self) -> Option<u32> {
        Some(self.new_window.as_ref()?.bound_key)
    }

    /// The bind has completed, or was discarded. Gives the key under which nothing is bound any more.
    pub fn finish(mut self, success: bool) -> Option<u32> {
        let new_window = self.new_window.take()?;
        let key = new_window.bound_key;
        let mut state = self.window.state.lock();
        if !success || state.closed {
            return Some(key);
        }
        state.bound_key = if self.opens { key } else { 0 };
        let new = self.opens.then_some(new_window);
        let old = std::mem::replace(&mut state.current, new);
        drop(state);
        // That of an unbind is found nowhere.
        old.map(|old| old.bound_key)
    }
}

impl Drop for Bind {
    fn drop(&mut self) {
        // The outcome is in the state of the window.
        self.window.binds.fetch_sub(1, Ordering::Release);
    }
}

impl Mw {
    pub(super) fn new(device: &Verbs, pd: &Arc<Pd>) -> Result<Arc<Mw>, DeviceError> {
        let current = match device.windows {
            Windows::None => return Err(DeviceError::Unsupported),
            Windows::Type1 => {
                Some(HwWindow::new(device, pd, sys::MW_TYPE_1).ok_or(DeviceError::Resources)?)
            }
            Windows::Type2 => None,
        };
        Ok(Arc::new(Mw {
            pd: pd.clone(),
            is_type2: current.is_none(),
            binds: AtomicU32::new(0),
            state: Mutex::new(State {
                current,
                bound_key: 0,
                closed: false,
            }),
        }))
    }

    /// Type 1: the key of the window, unless the consumer has freed it.
    fn type1_key(&self) -> Option<u32> {
        self.state.lock().current.as_ref().map(HwWindow::key)
    }

    /// The queue pair of this number is being closed.
    pub(super) fn queue_pair_closed(&self, number: u64) {
        let mut state = self.state.lock();
        let old = state.current.take_if(|window| window.qp_number == number);
        drop(state);
        drop(old);
    }

    /// A peer of the queue pair of this number has invalidated a key.
    pub(super) fn key_invalidated(&self, number: u64, key: u32) {
        let mut state = self.state.lock();
        let current = state.current.as_ref();
        if current.is_some_and(|w| (w.qp_number, w.bound_key) == (number, key)) {
            state.bound_key = 0;
        }
    }

    /// A bind is posted.
    fn begin_bind(self: &Arc<Mw>, wr: &BindWr<'_, Verbs>) -> Bind {
        self.binds.fetch_add(1, Ordering::Relaxed);
        Bind {
            context: wr.context,
            window: self.clone(),
            new_window: None,
            opens: wr.region.is_some(),
        }
    }
}

/// The windows of a queue pair by their keys.
#[derive(Default)]
pub(super) struct BoundWindows {
    windows: BTreeMap<u32, Weak<Mw>>,
    /// How many there are when those are looked for that the consumer has freed.
    sweep_at: usize,
}

impl BoundWindows {
    /// The fewest windows among which it is worthwhile to look for freed ones.
    const FEW: usize = 32;

    pub fn add(&mut self, key: u32, window: &Arc<Mw>) {
        if self.windows.len() >= self.sweep_at {
            self.windows.retain(|_, window| window.strong_count() > 0);
            self.sweep_at = (2 * self.windows.len()).max(Self::FEW);
        }
        self.windows.insert(key, Arc::downgrade(window));
    }

    pub fn remove(&mut self, key: u32) {
        self.windows.remove(&key);
    }

    pub fn get(&self, key: u32) -> Option<Arc<Mw>> {
        self.windows.get(&key)?.upgrade()
    }

    /// Takes all of them.
    pub fn take(&mut self) -> impl Iterator<Item = Arc<Mw>> + use<> {
        let windows = std::mem::take(&mut self.windows);
        windows.into_values().filter_map(|window| window.upgrade())
    }
}

impl MemoryWindow for Mw {
    fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        let old = state.current.take();
        drop(state);
        drop(old);
    }

    fn opening(&self) -> WindowOpening {
        if !self.is_type2 {
            return WindowOpening::Unknown;
        }
        let state = self.state.lock();
        match self.binds.load(Ordering::Acquire) {
            0 => WindowOpening::Open(state.bound_key),
            binds => WindowOpening::Binding(binds),
        }
    }
}

/// The next key of a type 2 window, whose low byte the user of the device chooses.
fn next_key(key: u32) -> u32 {
    key & !0xff | key.wrapping_add(1) & 0xff
}

fn info(device: &Verbs, wr: &BindWr<'_, Verbs>, pd: &Pd) -> Option<sys::MwBindInfo> {
    let Some(region) = wr.region else {
        let (mr, addr, length) = pd.dummy_region()?;
        return Some(sys::MwBindInfo {
            mr,
            addr,
            length,
            access: 0,
        });
    };
    let base = match wr.addressing {
        Addressing::Virtual => 0,
        Addressing::ZeroBased => sys::ACCESS_ZERO_BASED,
    };
    Some(sys::MwBindInfo {
        mr: region.raw,
        addr: wr.addr,
        length: wr.len,
        access: (device.remote_rights(wr.access) | base) as u32,
    })
}

/// See [`Device::post_bind`](crate::device::Device::post_bind).
pub(super) fn post(qp: &Qp, wr: &BindWr<'_, Verbs>) -> Result<u32, PostError> {
    let device = &qp.device;
    if wr.region.is_some_and(|region| !region.takes_windows()) {
        return Err(PostError::Access);
    }
    let posted = PostedWr::new(wr.wr_id, 0, Kind::Bind, wr.flags);
    // The device always reports the success of a bind, since the window before is destroyed then.
    let mut flags = sys::SEND_SIGNALED;
    if wr.flags.contains(WrFlags::FENCE) {
        flags |= sys::SEND_FENCE;
    }
    let mut bind = wr.window.begin_bind(wr);
    if device.windows == Windows::Type1 {
        if wr.addressing == Addressing::ZeroBased {
            return Err(PostError::Unsupported);
        }
        return post_type1(qp, wr, posted, flags, bind);
    }
    let mut new_window =
        HwWindow::new(device, &wr.window.pd, sys::MW_TYPE_2).ok_or(PostError::QueueFull)?;
    let info = info(device, wr, &new_window.pd).ok_or(PostError::QueueFull)?;
    let key = next_key(new_window.key());
    let mw = new_window.mw;
    qp.post_request(
        posted,
        bind.context,
        &pin(),
        |Ready {
             hw, slot, wr_id, ..
         }| {
            new_window.qp_number = hw.number();
            new_window.bound_key = key;
            bind.new_window = Some(new_window);
            hw.add_bind(slot, bind);
            let mut send = Request::new();
            send.fill(wr_id, sys::WR_BIND_MW, flags, &[]);
            send.bind(mw, key, info);
            // SAFETY: the queue pair is open, and window and region are valid.
            let error = unsafe { send_request(hw, &mut send) };
            if error != 0 {
                hw.drop_bind(slot);
            }
            error
        },
    )?;
    Ok(key)
}

fn post_type1(
    qp: &Qp,
    wr: &BindWr<'_, Verbs>,
    posted: PostedWr,
    send_flags: u32,
    bind: Bind,
) -> Result<u32, PostError> {
    let window = wr.window.clone();
    let mut key = window.type1_key();
    let info = match wr.region {
        Some(_) => info(&qp.device, wr, &window.pd).ok_or(PostError::QueueFull)?,
        None => sys::MwBindInfo {
            mr: null_mut(),
            addr: 0,
            length: 0,
            access: 0,
        },
    };
    let result = qp.post_request(
        posted,
        bind.context,
        &pin(),
        |Ready {
             hw, slot, wr_id, ..
         }| {
            // Here alone: a bind that is flushed notifies the consumer, without this lock.
            let state = window.state.lock();
            let Some(current) = &state.current else {
                key = None;
                return libc::EINVAL;
            };
            hw.add_bind(slot, bind);
            let mut request = sys::MwBind {
                wr_id,
                send_flags,
                info,
            };
            // SAFETY: the queue pair is open, and window and region are valid.
            let error = unsafe {
                match hw.ops.bind_mw {
                    Some(post) => post(hw.raw(), current.mw, &mut request),
                    None => libc::EOPNOTSUPP,
                }
            };
            // The device has given it a new one.
            key = Some(current.key());
            if error != 0 {
                hw.drop_bind(slot);
            }
            error
        },
    );
    let key = key.ok_or(PostError::Key)?;
    result.map(|()| key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_key_is_of_the_same_window() {
        assert_eq!(next_key(0x1200), 0x1201);
        assert_eq!(next_key(0x12ff), 0x1200);
    }
}
