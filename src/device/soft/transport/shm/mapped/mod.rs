//! Registered memory in a file, so that peers of this host access it with loads and stores.
//!
//! The kernel copies between two processes at a quarter of the speed of memory, and needs a
//! microsecond at least. Memory that both processes have mapped has no such limits, but the memory
//! of programs is private. Therefore, if the parameters of the IA ask for it, the whole pages of a
//! region move from private memory into a file, which peers map.
//!
//! # What moves where
//!
//! * The *memory file* is a `memfd` of this process ([`memfd`](super::memfd)), as large as the
//!   address space. A byte is in the file at the offset that is its address: nothing has to be
//!   allocated or looked up, and registrations may overlap. The file has only the pages that are
//!   in it now; the rest is a hole.
//! * A move copies each whole page of a region to the file, and maps the file there
//!   (`MAP_SHARED`) in place of the private page. The addresses and contents do not change for the
//!   program. The parts of pages at both edges of the range stay private, because the rest of such
//!   a page is not registered; peers copy from and to them by the kernel ([`cma`](super::cma)).
//! * The end of the last registration of a page that gives peers any right copies the page back to
//!   private memory, maps that in place of the file, and frees the page of the file. Not earlier,
//!   even if that registration has only a part of the page: the kernel may be copying to it for a
//!   peer, and would finish in the page of the file.
//! * Peers get the descriptor of the file in the handshake, and map it
//!   ([`peer_map`](super::peer_map)).
//!
//! # When regions move
//!
//! With `memory=eager` a region moves when it is registered. With `memory=shared` it is private first,
//! and moves when peers have used it so much that the move pays ([`promotion`]): a program that
//! registers memory for one transfer each never pays for a move.
//!
//! # What the program does not notice
//!
//! *Other threads* may use the memory while it moves. They wait, for as long as the copy of a few
//! megabytes takes, also inside the kernel, as in `read(2)` into the memory. `userfaultfd(2)` makes
//! them wait ([`userfault`], [`moves`]). Without the right to make threads wait inside the kernel
//! nothing moves, since such a system call would fail. *Peers* do not wait in the kernel: they find what moves
//! announced ([`moving_pages`](super::moving_pages)). *Pages that the kernel has given to a
//! device*, or to any other user that does not go through the page tables, do not move into the
//! file; the kernel refuses it. *A fork* gives the child its own copy ([`fork`]). *Mappings with
//! special properties*, shared mappings and mappings of files among them, do not move at all
//! ([`proc_maps`]), and neither does any memory of a process that has asynchronous I/O or devices
//! that hold its memory.
//!
//! # What the program may notice
//!
//! Registered memory is not private any longer: `madvise(MADV_DONTNEED)` does not clear it, a child
//! that is made without the handlers of `fork` does not have it, transparent huge pages are split,
//! and a thread that already waited on a process-shared futex in the memory is not woken by later
//! wakes. Pages that were given to a device *after* they moved into the file move back without
//! the device noticing, since the kernel does not report that: direct I/O into registered memory
//! has to be over when its last registration for peers ends. This is why all of it is an option.

pub(crate) mod fork;
pub(crate) mod moves;
pub mod order;
pub(super) mod proc_maps;
pub(in crate::device::soft) mod promotion;
pub(super) mod range_set;
pub(crate) mod registry;
pub(super) mod userfault;

use std::ops::Range;
use std::sync::Arc;

use crate::descriptor::OwnedFd;

pub(crate) use self::registry::{enable, register, release, wait_for_moves};

/// Size of the memory file, in bytes: the address space of a program.
pub(super) const FILE_LEN: u64 = 1 << 47;

/// Maps an extent of a peer's file; `map` returns its addresses. Memory of a peer is not moved.
pub(super) fn add_peer_extent<E>(map: impl FnOnce() -> Result<Range<u64>, E>) -> Result<u64, E> {
    let mut extents = registry::PEER_EXTENTS.lock();
    let extent = map()?;
    extents.insert(extent.clone());
    Ok(extent.start)
}

/// Unmaps an extent of a peer's file.
pub(super) fn remove_peer_extent(extent: &Range<u64>, unmap: impl FnOnce()) {
    let mut extents = registry::PEER_EXTENTS.lock();
    unmap();
    extents.remove(extent);
}

/// The memory file of this process, if it has one.
pub(crate) fn file() -> Option<Arc<OwnedFd>> {
    registry::current().map(|memory| memory.file.clone())
}
