//! The memory of a peer that it keeps in a file ([`share`](crate::device::soft::transport::shm::mapped)), as we see it.
//!
//! A byte is in the file at the offset that is its address in the peer, so there is nothing to
//! look up: the file is mapped in large windows, each when it is first touched. Address space is
//! all that a window costs, but there may be a thousand peers.
//!
//! A window is mapped to be read until something is to be written there: a program that strays
//! shall not find the memory of others writable unless it writes there for a purpose. The file
//! itself cannot be sealed against writing, or handed out to be read alone: its owner maps parts
//! of it as long as it lives, and which regions peers may write changes all the time.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};

use super::cma::Direction;
use super::mapped::{self, FILE_LEN};
use super::memfd;

/// Bytes of a window.
const VIEW: u64 = 1 << 32;
/// There can be no such window.
const REFUSED: usize = 1;
/// Set in the address of one that may be written.
const WRITABLE: usize = 2;

/// See the module.
pub(super) struct PeerMap {
    fd: OwnedFd,
    /// Where each window is, with [`WRITABLE`]; 0 if it was never needed.
    views: Box<[AtomicUsize]>,
}

impl PeerMap {
    /// Of the file that a peer has given.
    pub fn open(fd: OwnedFd) -> Result<PeerMap, Errno> {
        memfd::check(&fd, FILE_LEN)?;
        let views = Box::<[AtomicUsize]>::new_zeroed_slice((FILE_LEN / VIEW) as usize);
        Ok(PeerMap {
            fd,
            // SAFETY: zeros are numbers. Memory is only used for those that change.
            views: unsafe { views.assume_init() },
        })
    }

    /// Where the byte at `addr` of the peer is, for that use, and how many there are from it on.
    #[inline]
    pub fn at(&self, addr: u64, way: Direction) -> Option<(*mut u8, u64)> {
        let view = self.views.get((addr / VIEW) as usize)?;
        let mut at = view.load(Ordering::Acquire);
        if at == 0 {
            at = self.map(addr / VIEW, view);
        }
        if at == REFUSED || way == Direction::Write && at & WRITABLE == 0 && !permit(view, at) {
            return None;
        }
        let offset = addr % VIEW;
        let at = std::ptr::with_exposed_provenance_mut::<u8>(at & !WRITABLE);
        Some((at.wrapping_add(offset as usize), VIEW - offset))
    }

    #[cold]
    fn map(&self, number: u64, view: &AtomicUsize) -> usize {
        // SAFETY: a new mapping at an address that the kernel chooses.
        let map = || unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                VIEW as usize,
                ProtFlags::READ,
                MapFlags::SHARED | MapFlags::NORESERVE,
                &self.fd,
                number * VIEW,
            )
        };
        let map = || {
            let at = map()?;
            for advice in [Advice::LinuxDontFork, Advice::LinuxDontDump] {
                // SAFETY: our own mapping. What a peer has is no part of our core dump, and a
                // child has no business there.
                let _ = unsafe { rustix::mm::madvise(at, VIEW as usize, advice) };
            }
            Ok::<_, Errno>(range(at.expose_provenance()))
        };
        let new = mapped::add_view(map).map_or_else(
            |error| {
                log::info!("no room to map the memory of a peer: {error}");
                REFUSED
            },
            |at| at as usize,
        );
        match view.compare_exchange(0, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => new,
            Err(other) => {
                unmap(new);
                other
            }
        }
    }
}

/// Lets a window be written from now on. False if the kernel does not have it.
#[cold]
fn permit(view: &AtomicUsize, at: usize) -> bool {
    let protection = MprotectFlags::READ | MprotectFlags::WRITE;
    let to = std::ptr::with_exposed_provenance_mut(at);
    // SAFETY: our own mapping, which stays as long as the peer is known.
    let done = unsafe { rustix::mm::mprotect(to, VIEW as usize, protection) };
    if done.is_ok() {
        view.fetch_or(WRITABLE, Ordering::AcqRel);
    }
    done.is_ok()
}

fn range(view: usize) -> Range<u64> {
    view as u64..view as u64 + VIEW
}

fn unmap(view: usize) {
    if view > REFUSED {
        let at = std::ptr::with_exposed_provenance_mut(view);
        mapped::remove_view(&range(view), || {
            // SAFETY: our own mapping, and nothing refers to it any more.
            let _ = unsafe { rustix::mm::munmap(at, VIEW as usize) };
        });
    }
}

impl Drop for PeerMap {
    fn drop(&mut self) {
        for view in &mut self.views {
            unmap(*view.get_mut() & !WRITABLE);
        }
    }
}
