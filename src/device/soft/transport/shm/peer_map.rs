//! Mappings of the memory file of a peer: the file in which a peer keeps its registered memory
//! ([`mapped`](mod@super::mapped)).
//!
//! A byte is in the file at the offset that is its address in the peer, so no table of offsets is
//! needed. The file is mapped in large extents, each at its first use. An extent costs address
//! space only, but there may be a thousand peers.
//!
//! An extent is mapped for reading until the first write to it: a program error here shall not
//! find the memory of other processes writable unless this process writes there anyway. The file
//! itself cannot be sealed against writing, nor sent by a descriptor for reading only: its owner
//! maps parts of it as long as the owner runs, and the regions that peers may write change all the
//! time.

use std::ffi::c_void;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};
use zerocopy::FromZeros;

use super::cma::Direction;
use super::mapped::userfault::{FaultMode, UserFaults};
use super::mapped::{self, FILE_LEN};
use super::memfd;
use crate::descriptor::OwnedFd;

/// Size of an extent, in bytes.
const EXTENT: u64 = 1 << 32;
/// The kernel has refused to map the extent.
const REFUSED: usize = 1;
/// Set in the address of an extent that is mapped for writing too.
const WRITABLE: usize = 2;

/// The mappings of one peer's file.
pub(super) struct PeerMap {
    /// The file.
    fd: OwnedFd,
    /// Address of each extent, with [`WRITABLE`]; 0 before its first use, or [`REFUSED`].
    extents: Box<[AtomicUsize]>,
    /// Keeps holes of the file empty, from the first extent on; `None` if the kernel does not permit that.
    holes: OnceLock<Option<UserFaults>>,
}

impl PeerMap {
    /// Uses the file that a peer has sent.
    pub fn open(fd: OwnedFd) -> Result<PeerMap, Errno> {
        memfd::check(&fd, FILE_LEN)?;
        // Only the pages that are written use memory.
        let extents = <[AtomicUsize]>::new_box_zeroed_with_elems((FILE_LEN / EXTENT) as usize);
        let extents = extents.map_err(|_| Errno::NOMEM)?;
        let holes = OnceLock::new();
        Ok(PeerMap { fd, extents, holes })
    }

    /// Our address of the byte at `addr` of the peer, for a copy in that direction, and the number
    /// of bytes that are mapped from there on.
    #[inline]
    pub fn at(&self, addr: u64, direction: Direction) -> Option<(*mut u8, u64)> {
        let extent = self.extents.get((addr / EXTENT) as usize)?;
        let mut at = extent.load(Ordering::Acquire);
        if at == 0 {
            at = self.map(addr / EXTENT, extent);
        }
        if at == REFUSED
            || direction == Direction::Write && at & WRITABLE == 0 && !make_writable(extent, at)
        {
            return None;
        }
        let offset = addr % EXTENT;
        let at = std::ptr::with_exposed_provenance_mut::<u8>(at & !WRITABLE);
        Some((at.wrapping_add(offset as usize), EXTENT - offset))
    }

    /// [`PeerMap::at`] for a write to where one has been made before, without any call.
    #[inline(always)]
    pub fn writable_at(&self, addr: u64) -> Option<(*mut u8, u64)> {
        let at = self
            .extents
            .get((addr / EXTENT) as usize)?
            .load(Ordering::Acquire);
        if at & WRITABLE == 0 {
            return None;
        }
        let offset = addr % EXTENT;
        let at = std::ptr::with_exposed_provenance_mut::<u8>(at & !WRITABLE);
        Some((at.wrapping_add(offset as usize), EXTENT - offset))
    }

    /// From now on nothing that reads all of an extent allocates memory in the file: a program that locks what it has
    /// mapped (`mlockall(2)`, MCL_CURRENT), for one.
    fn keep_holes(&self, extent: &Range<u64>) {
        let open = || {
            let opened = UserFaults::for_holes();
            opened.inspect_err(|error| log::info!("no userfaultfd: {error}"))
        };
        if let Some(holes) = self.holes.get_or_init(|| open().ok())
            && let Err(error) = holes.requests().register(extent, FaultMode::Missing)
        {
            log::info!("holes in the registered memory of a peer are not kept: {error}");
        }
    }

    /// Maps an extent, unless another thread is faster. Returns what is in `extents` then.
    #[cold]
    fn map(&self, number: u64, extent: &AtomicUsize) -> usize {
        // In a program that locks all that it maps (`mlockall(2)`, MCL_FUTURE) the kernel would read each page
        // of the extent at once, and so allocate it in the file of the peer. It leaves out what cannot be read.
        // SAFETY: a new mapping at an address that the kernel chooses.
        let map = || unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                EXTENT as usize,
                ProtFlags::empty(),
                MapFlags::SHARED | MapFlags::NORESERVE,
                &self.fd,
                number * EXTENT,
            )
        };
        let map = || {
            let at = map()?;
            // SAFETY: our own mapping, which nothing is in yet.
            let _ = unsafe { rustix::mm::munlock(at, EXTENT as usize) };
            // SAFETY: as above.
            if let Err(error) = unsafe { protect(at, MprotectFlags::READ) } {
                // SAFETY: as above; nothing refers to it.
                let _ = unsafe { rustix::mm::munmap(at, EXTENT as usize) };
                return Err(error);
            }
            for advice in [Advice::LinuxDontFork, Advice::LinuxDontDump] {
                // SAFETY: our own mapping. The memory of a peer is no part of our core dump,
                // and a child has no use for it.
                let _ = unsafe { rustix::mm::madvise(at, EXTENT as usize, advice) };
            }
            let extent = range(at.expose_provenance());
            self.keep_holes(&extent);
            Ok(extent)
        };
        let new = mapped::add_peer_extent(map).map_or_else(
            |error| {
                log::info!("the registered memory of a peer cannot be mapped: {error}");
                REFUSED
            },
            |at| at as usize,
        );
        match extent.compare_exchange(0, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => new,
            Err(other) => {
                unmap(new);
                other
            }
        }
    }
}

/// Maps an extent for writing too. False if the kernel refuses.
#[cold]
fn make_writable(extent: &AtomicUsize, at: usize) -> bool {
    let to = std::ptr::with_exposed_provenance_mut(at);
    // SAFETY: our own mapping, which exists as long as the peer is known.
    let done = unsafe { protect(to, MprotectFlags::READ | MprotectFlags::WRITE) };
    if done.is_ok() {
        extent.fetch_or(WRITABLE, Ordering::AcqRel);
    }
    done.is_ok()
}

/// Sets how an extent may be accessed.
///
/// # Safety
/// A mapping of ours.
unsafe fn protect(at: *mut c_void, protection: MprotectFlags) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe { rustix::mm::mprotect(at, EXTENT as usize, protection) }
}

fn range(extent: usize) -> Range<u64> {
    extent as u64..extent as u64 + EXTENT
}

fn unmap(extent: usize) {
    if extent > REFUSED {
        let at = std::ptr::with_exposed_provenance_mut(extent);
        mapped::remove_peer_extent(&range(extent), || {
            // SAFETY: our own mapping, and nothing refers to it any more.
            let _ = unsafe { rustix::mm::munmap(at, EXTENT as usize) };
        });
    }
}

impl Drop for PeerMap {
    fn drop(&mut self) {
        for extent in &mut self.extents {
            unmap(*extent.get_mut() & !WRITABLE);
        }
    }
}
