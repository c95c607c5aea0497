//! The memory of the arena: reserved once, made accessible piece by piece, never unmapped.

use std::ffi::c_void;
use std::ptr::null_mut;

use super::arena::{PageHeader, Slot};

/// Bytes of a page, of which the arena knows whether its slots are in use: no more than a page of the kernel has
/// anywhere.
pub const PAGE: usize = 4096;
/// Bytes made accessible at a time; they use memory only when touched.
pub const CHUNK: usize = 1 << 20;
/// Bytes of address space to reserve; the first that the machine grants is used. Memory limits and
/// strict overcommit grant less than the first. 64 GiB hold 4 thousand million handles.
#[cfg(all(target_pointer_width = "64", not(target_arch = "riscv64")))]
const SIZES: [usize; 4] = [1 << 36, 1 << 32, 1 << 28, 1 << 24];
/// The same where a process may have no more than 256 GiB of addresses, and several copies of the library: 8 GiB hold
/// 512 million handles.
#[cfg(target_arch = "riscv64")]
const SIZES: [usize; 4] = [1 << 33, 1 << 31, 1 << 28, 1 << 24];
/// The same where addresses have 32 bits, most of which are the program's: 64 MiB hold 4 million handles.
#[cfg(target_pointer_width = "32")]
const SIZES: [usize; 4] = [1 << 26, 1 << 25, 1 << 24, 1 << 22];

/// Reserves address space: where it begins and how many bytes it has.
pub fn reserve() -> Option<(usize, usize)> {
    for size in SIZES {
        // SAFETY: a new anonymous mapping, no address asked for.
        let base = unsafe {
            libc::mmap(
                null_mut(),
                size,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if base != libc::MAP_FAILED {
            // Core dumps need not contain it. A child has zeros there, even if it is made without the
            // handlers of `fork`.
            // SAFETY: the mapping just made.
            unsafe {
                libc::madvise(base, size, libc::MADV_DONTDUMP);
                libc::madvise(base, size, libc::MADV_WIPEONFORK);
            }
            // As with the largest pages that a test may pretend.
            #[cfg(test)]
            let (base, size) = (
                base.map_addr(|at| at.next_multiple_of(1 << 16)),
                size - CHUNK,
            );
            return Some((base.expose_provenance(), size));
        }
    }
    None
}

/// Makes [`CHUNK`] bytes accessible, which read as zero. `false` if there is no memory.
///
/// # Safety
/// The bytes from `start` on are part of the reservation.
pub unsafe fn commit(start: usize) -> bool {
    // SAFETY: inside the reservation, by the caller's promise.
    let result = unsafe {
        libc::mprotect(
            start as *mut c_void,
            CHUNK,
            libc::PROT_READ | libc::PROT_WRITE,
        )
    };
    result == 0
}

/// Bytes of a page of the kernel, the unit in which memory is returned to it: 4096 times a power of two, at most 64 KiB.
pub fn kernel_page() -> usize {
    #[cfg(test)]
    if let pretended @ 1.. = PRETENDED_PAGE.load(std::sync::atomic::Ordering::Relaxed) {
        return pretended;
    }
    rustix::param::page_size()
}

/// What a test has [`kernel_page`] say in place of the size of this kernel's pages, unless that is 0. [`discard`] is then
/// as on a kernel with such pages.
#[cfg(test)]
pub static PRETENDED_PAGE: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

/// Makes pages read as zero and returns their memory to the kernel, which does so in pages of its own: it refuses a
/// range that begins inside one, and takes one that ends inside one for longer.
///
/// # Safety
/// The pages are committed, and their readers may see zero from now on.
pub unsafe fn discard(start: usize, len: usize) {
    #[cfg(test)]
    let len = match start.is_multiple_of(kernel_page()) {
        true => len.next_multiple_of(kernel_page()),
        false => return,
    };
    // SAFETY: anonymous memory of the reservation, whose content may be lost by the caller's
    // promise.
    unsafe { libc::madvise(start as *mut c_void, len, libc::MADV_DONTNEED) };
}

/// The slot at an address.
///
/// # Safety
/// The address is committed and a multiple of the size of a slot.
#[inline]
pub unsafe fn slot(address: usize) -> &'static Slot {
    // SAFETY: never unmapped, and aligned by the caller's promise; `Slot` consists of atomics for
    // which every bit pattern is valid.
    unsafe { &*std::ptr::with_exposed_provenance(address) }
}

/// The header of a page.
///
/// # Safety
/// The page is committed.
pub unsafe fn header(page: usize) -> &'static PageHeader {
    // SAFETY: as for [`slot`].
    unsafe { &*std::ptr::with_exposed_provenance(page) }
}
