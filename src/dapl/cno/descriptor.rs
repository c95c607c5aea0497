//! The file descriptor of a CNO of `dat_cno_fd_create`, for `poll`, `epoll` and event loops.

use std::os::fd::{AsRawFd, RawFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{self, Errno};

use crate::descriptor::{self, OwnedFd};

/// A descriptor that is readable while the CNO has an EVD for `dat_cno_trigger`. The lock of the CNO guards
/// it.
pub(super) struct Descriptor {
    fd: OwnedFd,
    /// Whether it is readable, unless the program has read it.
    readable: bool,
}

impl Descriptor {
    /// One that is not readable.
    ///
    /// # Errors
    /// Of the system.
    pub fn new() -> Result<Descriptor, Errno> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let fd = descriptor::open(|| eventfd(0, flags))?;
        let readable = false;
        Ok(Descriptor { fd, readable })
    }

    /// The number of the descriptor.
    pub fn number(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Makes it readable, or not. One that is readable becomes so once more: for a program that has read
    /// it, or that waits for edges.
    pub fn set(&mut self, readable: bool) {
        let was_readable = std::mem::replace(&mut self.readable, readable);
        let mut counter = 1u64.to_ne_bytes();
        // The first fails when the counter is at its end, which is readable, the second when the program
        // has read it.
        if readable {
            let _ = io::write(&self.fd, &counter);
        } else if was_readable {
            let _ = io::read(&self.fd, &mut counter);
        }
    }
}
