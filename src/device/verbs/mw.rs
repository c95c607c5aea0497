//! Memory windows.
//!
//! Type 2 windows are preferred: peers can invalidate them. The device refuses to bind one that
//! is bound, and to invalidate one that a peer has just invalidated is an error; so every bind
//! is that of a fresh window, and the one before is given up when the bind has completed. That
//! is also the order the consumer is promised, and a bind that is flushed changes nothing. To
//! close a window in the order of the queue is to bind a fresh one to nowhere.
//!
//! A type 2 window belongs to the queue pair it was bound on and closes with it.

use std::ptr::null_mut;
use std::sync::Arc;

use parking_lot::Mutex;

use super::mr::Pd;
use super::post::{Ready, Request, send as send_request};
use super::qp::Qp;
use super::ring::{Kind, Posted};
use super::table::Numbered;
use super::{Verbs, sys};
use crate::device::{Access, BindWr, DeviceError, MemoryWindow, PostError, WrFlags};
use crate::handle::pin::pin;

/// Which windows a device has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Windows {
    None,
    Type1,
    Type2,
}

impl Windows {
    pub fn of(device_cap_flags: u32) -> Windows {
        let type2 = sys::DEVICE_MEM_WINDOW_TYPE_2A | sys::DEVICE_MEM_WINDOW_TYPE_2B;
        if device_cap_flags & type2 != 0 {
            Windows::Type2
        } else if device_cap_flags & sys::DEVICE_MEM_WINDOW != 0 {
            Windows::Type1
        } else {
            Windows::None
        }
    }
}

/// A window of the device. Dropping it closes it.
struct Raw {
    pd: Arc<Pd>,
    mw: *mut sys::Mw,
    /// The queue pair it is bound on, as [`super::hw::Hw`]'s number.
    on: u64,
}

// SAFETY: libibverbs is thread-safe, and the window is valid until the drop.
unsafe impl Send for Raw {}

impl Raw {
    fn new(device: &Verbs, pd: &Arc<Pd>, kind: i32) -> Option<Raw> {
        // SAFETY: the context is open, the domain valid.
        let mw = unsafe { (*device.adapter.ctx).ops.alloc_mw?(pd.raw, kind) };
        (!mw.is_null()).then(|| Raw {
            pd: pd.clone(),
            mw,
            on: 0,
        })
    }

    fn key(&self) -> u32 {
        // SAFETY: the window is valid.
        unsafe { (*self.mw).rkey }
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
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
    state: Mutex<State>,
}

struct State {
    /// Type 2: what is bound. Type 1: the window.
    current: Option<Raw>,
    closed: bool,
}

/// A bind that has not completed.
pub(super) struct Bind {
    pub context: u64,
    pub window: Arc<Mw>,
    /// Type 2: what takes the place of the current window.
    fresh: Option<Raw>,
    /// It is bound to a region.
    opens: bool,
}

impl Bind {
    /// Whatever comes of it, nothing changes.
    pub fn give_up(&mut self) {
        self.fresh = None;
    }

    /// The bind has completed, or was given up.
    pub fn finish(self, success: bool) {
        let Some(fresh) = self.fresh else { return };
        let mut state = self.window.state.lock();
        if success && !state.closed {
            let new = self.opens.then_some(fresh);
            let old = std::mem::replace(&mut state.current, new);
            drop(state);
            drop(old);
        }
    }
}

impl Mw {
    pub(super) fn new(device: &Verbs, pd: &Arc<Pd>) -> Result<Arc<Mw>, DeviceError> {
        let current = match device.windows {
            Windows::None => return Err(DeviceError::Unsupported),
            Windows::Type1 => {
                Some(Raw::new(device, pd, sys::MW_TYPE_1).ok_or(DeviceError::Resources)?)
            }
            Windows::Type2 => None,
        };
        Ok(Arc::new(Mw {
            pd: pd.clone(),
            state: Mutex::new(State {
                current,
                closed: false,
            }),
        }))
    }

    /// The queue pair of this number is about to go.
    pub(super) fn queue_pair_gone(&self, number: u64) {
        let mut state = self.state.lock();
        let old = state.current.take_if(|raw| raw.on == number);
        drop(state);
        drop(old);
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
}

/// The next key of a type 2 window: the low byte is the consumer's to choose.
fn next_key(key: u32) -> u32 {
    key & !0xff | key.wrapping_add(1) & 0xff
}

fn info(wr: &BindWr<'_, Verbs>, pd: &Pd) -> Option<sys::MwBindInfo> {
    let Some(region) = wr.region else {
        let (mr, addr, length) = pd.nowhere()?;
        return Some(sys::MwBindInfo {
            mr,
            addr,
            length,
            access: 0,
        });
    };
    let mut access = 0;
    if wr.access.contains(Access::REMOTE_READ) {
        access |= sys::ACCESS_REMOTE_READ;
    }
    if wr.access.contains(Access::REMOTE_WRITE) {
        access |= sys::ACCESS_REMOTE_WRITE;
    }
    Some(sys::MwBindInfo {
        mr: region.raw,
        addr: wr.addr,
        length: wr.len,
        access: access as u32,
    })
}

/// See [`Device::post_bind`](crate::device::Device::post_bind).
pub(super) fn post(qp: &Qp, wr: &BindWr<'_, Verbs>) -> Result<u32, PostError> {
    let device = &qp.device;
    let posted = Posted::new(wr.wr_id, 0, Kind::Bind, wr.flags);
    // A bind always has a completion of the device: what it leaves behind must be cleared up.
    let mut flags = sys::SEND_SIGNALED;
    if wr.flags.contains(WrFlags::FENCE) {
        flags |= sys::SEND_FENCE;
    }
    let mut bind = Bind {
        context: wr.context,
        window: wr.window.clone(),
        fresh: None,
        opens: wr.region.is_some(),
    };
    if device.windows == Windows::Type1 {
        return post_type1(qp, wr, posted, flags, bind);
    }
    let mut fresh = Raw::new(device, &wr.window.pd, sys::MW_TYPE_2).ok_or(PostError::QueueFull)?;
    let info = info(wr, &fresh.pd).ok_or(PostError::QueueFull)?;
    let key = next_key(fresh.key());
    let mw = fresh.mw;
    qp.post_request(
        posted,
        bind.context,
        &pin(),
        |Ready {
             hw, slot, wr_id, ..
         }| {
            fresh.on = hw.number();
            bind.fresh = Some(fresh);
            hw.remember(slot, bind);
            let mut send = Request::new();
            send.fill(wr_id, sys::WR_BIND_MW, flags, &[]);
            send.bind(mw, key, info);
            // SAFETY: the queue pair is open, and window and region are valid.
            let error = unsafe { send_request(hw, &mut send) };
            if error != 0 {
                hw.forget(slot);
            }
            error
        },
    )?;
    Ok(key)
}

fn post_type1(
    qp: &Qp,
    wr: &BindWr<'_, Verbs>,
    posted: Posted,
    send_flags: u32,
    bind: Bind,
) -> Result<u32, PostError> {
    let window = wr.window.clone();
    let state = window.state.lock();
    let current = state.current.as_ref().ok_or(PostError::Key)?;
    let info = match wr.region {
        Some(_) => info(wr, &current.pd).ok_or(PostError::QueueFull)?,
        None => sys::MwBindInfo {
            mr: null_mut(),
            addr: 0,
            length: 0,
            access: 0,
        },
    };
    qp.post_request(
        posted,
        bind.context,
        &pin(),
        |Ready {
             hw, slot, wr_id, ..
         }| {
            hw.remember(slot, bind);
            let mut request = sys::MwBind {
                wr_id,
                send_flags,
                info,
            };
            // SAFETY: the queue pair is open, and window and region are valid.
            let error = unsafe {
                match (*(*current.mw).context).ops.bind_mw {
                    Some(post) => post(hw.raw(), current.mw, &mut request),
                    None => libc::EOPNOTSUPP,
                }
            };
            if error != 0 {
                hw.forget(slot);
            }
            error
        },
    )?;
    Ok(current.key())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_key_is_of_the_same_window() {
        assert_eq!(next_key(0x1200), 0x1201);
        assert_eq!(next_key(0x12ff), 0x1200);
    }

    #[test]
    fn which_windows_a_device_has() {
        assert_eq!(Windows::of(0), Windows::None);
        assert_eq!(Windows::of(sys::DEVICE_MEM_WINDOW), Windows::Type1);
        let both = sys::DEVICE_MEM_WINDOW | sys::DEVICE_MEM_WINDOW_TYPE_2B;
        assert_eq!(Windows::of(both), Windows::Type2);
    }
}
