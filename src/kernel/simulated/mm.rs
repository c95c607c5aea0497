//! `rustix::mm`.

use std::ffi::c_void;

pub use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mprotect};

use super::{AsFd, Errno, ask, raw};

/// See [`Kernel::map`](super::Kernel::map).
///
/// # Safety
/// As for the function of rustix.
pub unsafe fn mmap(
    hint: *mut c_void,
    len: usize,
    protection: ProtFlags,
    _flags: MapFlags,
    fd: impl AsFd,
    offset: u64,
) -> Result<*mut c_void, Errno> {
    ask(|kernel| kernel.map(hint, len, protection, Some((raw(fd), offset))))
}

/// See [`Kernel::map`](super::Kernel::map).
///
/// # Safety
/// As for the function of rustix.
pub unsafe fn mmap_anonymous(
    hint: *mut c_void,
    len: usize,
    protection: ProtFlags,
    _flags: MapFlags,
) -> Result<*mut c_void, Errno> {
    ask(|kernel| kernel.map(hint, len, protection, None))
}

/// See [`Kernel::unmap`](super::Kernel::unmap).
///
/// # Safety
/// As for the function of rustix.
pub unsafe fn munmap(at: *mut c_void, len: usize) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    ask(|kernel| unsafe { kernel.unmap(at, len) });
    Ok(())
}
