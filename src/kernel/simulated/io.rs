//! `rustix::io`.

use super::{AsFd, Errno, NewFd, ask, raw};

/// See [`Kernel::duplicate`](super::Kernel::duplicate).
pub fn fcntl_dupfd_cloexec(fd: impl AsFd, _least: i32) -> Result<NewFd, Errno> {
    ask(|kernel| kernel.duplicate(raw(fd))).map(NewFd)
}

/// Sets an eventfd.
pub fn write(fd: impl AsFd, _bytes: &[u8]) -> Result<usize, Errno> {
    ask(|kernel| kernel.eventfd_set(raw(fd), true));
    Ok(8)
}

/// Clears an eventfd.
pub fn read(fd: impl AsFd, _bytes: &mut [u8]) -> Result<usize, Errno> {
    ask(|kernel| kernel.eventfd_set(raw(fd), false));
    Ok(8)
}
