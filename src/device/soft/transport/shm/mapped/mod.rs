//! Registered memory in a file, so that peers of this host reach it with loads and stores.
//!
//! The kernel copies between two processes at a quarter of the speed of memory, and not below a
//! microsecond. Memory that both have mapped has no such limits, but that of programs is
//! private. So, if the entry of the adapter asks for it, a registration moves the whole pages
//! inside its range to a file in memory that peers map, and the end of the last registration
//! that touches them moves them back. The file is as large as the address space, and a byte is
//! at the offset that is its address: there is nothing to allocate or to look up, and
//! registrations overlap as they like. The parts of pages at the edges stay private, since what
//! else is on those pages is not the registration's; they are reached as ever.
//!
//! # What the program does not notice
//!
//! *Other threads* may use the memory while it moves. They wait, for as long as a few megabytes
//! take to be copied ([`userfault`], [`moves`]); also inside of the kernel, as in `read(2)` into
//! the memory. That takes the right to have such waits: without it such a call would fail, so
//! without it nothing moves. *Pages that the kernel has given to a device*, or to anybody else
//! who does not look at the page tables, do not move into the file; the kernel knows.
//! *A fork* gives the child its own copy ([`fork`]). *Mappings with a special property*, shared
//! ones and files among them, do not move at all ([`proc_maps`]), and neither does anything of a
//! process that has asynchronous I/O or devices under way that hold its memory.
//!
//! # What it may notice
//!
//! Registered memory is not private any more: `madvise(MADV_DONTNEED)` does not clear it, a
//! child that is made without the handlers of `fork` does not have it, transparent huge pages
//! are given up, and a thread that already waited on a process-shared futex in it waits under
//! another name. And pages that were given to a device *after* they moved into the file move
//! back without it noticing, since the kernel does not tell: direct I/O into registered memory
//! has to be over when its last registration ends. This is why all of it is an option.

pub(crate) mod fork;
pub(crate) mod moves;
pub(super) mod proc_maps;
pub(super) mod range_set;
pub(crate) mod registry;
pub(super) mod userfault;

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

pub(crate) use self::registry::{enable, register, release, wait_for_moves};

/// Bytes of the file: all addresses of programs.
pub(super) const FILE_LEN: u64 = 1 << 47;

/// Maps a window of the file of a peer; `map` says where it is.
pub(super) fn add_view<E>(map: impl FnOnce() -> Result<Range<u64>, E>) -> Result<u64, E> {
    let mut views = registry::VIEWS.lock();
    let view = map()?;
    views.insert(view.clone());
    Ok(view.start)
}

/// Unmaps it.
pub(super) fn remove_view(view: &Range<u64>, unmap: impl FnOnce()) {
    let mut views = registry::VIEWS.lock();
    unmap();
    views.remove(view);
}

/// The file of this process, if it has one.
pub(crate) fn file() -> Option<Arc<OwnedFd>> {
    registry::current().map(|arena| arena.file.clone())
}
