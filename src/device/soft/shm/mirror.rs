//! The memory of a peer that it keeps in a file ([`share`](super::share)), as we see it.
//!
//! A byte is in the file at the offset that is its address in the peer, so there is nothing to
//! look up: the file is mapped in large windows, each when it is first touched. Address space is
//! all that a window costs, but there may be a thousand peers.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::memory;
use super::share::{self, FILE_LEN};

/// Bytes of a window.
const VIEW: u64 = 1 << 32;
/// There can be no such window.
const REFUSED: usize = 1;

/// See the module.
pub(super) struct Mirror {
    fd: OwnedFd,
    /// Where each window is; 0 if it was never needed.
    views: Box<[AtomicUsize]>,
}

impl Mirror {
    /// Of the file that a peer has given.
    pub fn open(fd: OwnedFd) -> Result<Mirror, Errno> {
        memory::check(&fd, FILE_LEN)?;
        let views = Box::<[AtomicUsize]>::new_zeroed_slice((FILE_LEN / VIEW) as usize);
        Ok(Mirror {
            fd,
            // SAFETY: zeros are numbers. Memory is only used for those that change.
            views: unsafe { views.assume_init() },
        })
    }

    /// Where the byte at `addr` of the peer is, and how many there are from it on.
    #[inline]
    pub fn at(&self, addr: u64) -> Option<(*mut u8, u64)> {
        let view = self.views.get((addr / VIEW) as usize)?;
        let mut at = view.load(Ordering::Acquire);
        if at == 0 {
            at = self.map(addr / VIEW, view);
        }
        if at == REFUSED {
            return None;
        }
        let offset = addr % VIEW;
        let at = std::ptr::with_exposed_provenance_mut::<u8>(at);
        Some((at.wrapping_add(offset as usize), VIEW - offset))
    }

    #[cold]
    fn map(&self, number: u64, view: &AtomicUsize) -> usize {
        // SAFETY: a new mapping at an address that the kernel chooses.
        let map = || unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                VIEW as usize,
                ProtFlags::READ | ProtFlags::WRITE,
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
        let new = share::add_view(map).map_or_else(
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

fn range(view: usize) -> Range<u64> {
    view as u64..view as u64 + VIEW
}

fn unmap(view: usize) {
    if view > REFUSED {
        let at = std::ptr::with_exposed_provenance_mut(view);
        share::remove_view(&range(view), || {
            // SAFETY: our own mapping, and nothing refers to it any more.
            let _ = unsafe { rustix::mm::munmap(at, VIEW as usize) };
        });
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        for view in &mut self.views {
            unmap(*view.get_mut());
        }
    }
}
