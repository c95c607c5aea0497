//! `rustix::fs`, as far as it is for memory files. The files are those of the real kernel; their
//! descriptors are those of the simulated one.

use std::ffi::CStr;
use std::os::fd::BorrowedFd;

pub use rustix::fs::{FallocateFlags, FsWord, MemfdFlags, Mode, OFlags, SealFlags, Stat, StatFs};

use super::{AsFd, Errno, FileCall, NewFd, ask, raw};

/// Executes a call with the descriptor of the real kernel.
fn on_real<R>(
    fd: impl AsFd,
    call: FileCall,
    execute: impl FnOnce(BorrowedFd<'_>) -> Result<R, Errno>,
) -> Result<R, Errno> {
    let real = ask(|kernel| kernel.real_file(raw(fd), call))?;
    // SAFETY: open as long as the simulated descriptor is, which lives during this call.
    execute(unsafe { BorrowedFd::borrow_raw(real) })
}

/// See [`Kernel::memory_file`](super::Kernel::memory_file).
pub fn memfd_create(name: &CStr, flags: MemfdFlags) -> Result<NewFd, Errno> {
    ask(|kernel| kernel.memory_file(name, flags)).map(NewFd)
}

/// Sets the size of a file.
pub fn ftruncate(fd: impl AsFd, len: u64) -> Result<(), Errno> {
    on_real(fd, FileCall::Resize, |fd| rustix::fs::ftruncate(fd, len))
}

/// Allocates memory of a file.
pub fn fallocate(fd: impl AsFd, mode: FallocateFlags, start: u64, len: u64) -> Result<(), Errno> {
    let allocate = |fd: BorrowedFd<'_>| rustix::fs::fallocate(fd, mode, start, len);
    on_real(fd, FileCall::Allocate, allocate)
}

/// `F_ADD_SEALS`.
pub fn fcntl_add_seals(fd: impl AsFd, seals: SealFlags) -> Result<(), Errno> {
    let seal = |fd: BorrowedFd<'_>| rustix::fs::fcntl_add_seals(fd, seals);
    on_real(fd, FileCall::Seal, seal)
}

/// `F_GET_SEALS`.
pub fn fcntl_get_seals(fd: impl AsFd) -> Result<SealFlags, Errno> {
    on_real(fd, FileCall::Query, |fd| rustix::fs::fcntl_get_seals(fd))
}

/// `fstat`.
pub fn fstat(fd: impl AsFd) -> Result<Stat, Errno> {
    on_real(fd, FileCall::Query, |fd| rustix::fs::fstat(fd))
}

/// `fstatfs`.
pub fn fstatfs(fd: impl AsFd) -> Result<StatFs, Errno> {
    on_real(fd, FileCall::Query, |fd| rustix::fs::fstatfs(fd))
}

/// Opens the file of a descriptor of this process again, for reading. There are no other files.
pub fn open(path: String, _flags: OFlags, _mode: Mode) -> Result<NewFd, Errno> {
    let number = path.strip_prefix("/proc/self/fd/");
    let number = number.and_then(|number| number.parse().ok());
    let number = number.ok_or(Errno::NOENT)?;
    ask(|kernel| kernel.open_for_reading(number)).map(NewFd)
}
