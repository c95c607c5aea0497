//! The replacement of `memory.rs` under Miri, which knows of no reservation without memory: memory of
//! the allocator.

use std::alloc::{Layout, alloc_zeroed};
use std::ptr::null_mut;

use super::arena::{PageHeader, Slot};
use crate::sync::atomic::Ordering;

/// As in `memory.rs`.
pub const PAGE: usize = 4096;
/// As in `memory.rs`.
pub const CHUNK: usize = 1 << 20;
/// Bytes of the memory.
const SIZE: usize = CHUNK;

/// Nothing is returned to a kernel here.
pub fn kernel_page() -> usize {
    PAGE
}

/// Allocates the memory, which is never freed.
pub fn reserve() -> Option<(usize, usize)> {
    let layout = Layout::from_size_align(SIZE, PAGE).ok()?;
    // SAFETY: the size is not 0.
    let base = unsafe { alloc_zeroed(layout) };
    (!base.is_null()).then(|| (base.expose_provenance(), SIZE))
}

/// All of the memory is accessible.
pub unsafe fn commit(_start: usize) -> bool {
    true
}

/// Makes pages read as zero.
///
/// # Safety
/// As in `memory.rs`.
pub unsafe fn discard(start: usize, len: usize) {
    for address in (start..start + len).step_by(size_of::<Slot>()) {
        // SAFETY: a slot or the header of a page, which begins with the same field.
        let slot = unsafe { slot(address) };
        slot.table.store(null_mut(), Ordering::Relaxed);
        slot.object.store(null_mut(), Ordering::Relaxed);
    }
}

/// The slot at an address.
///
/// # Safety
/// As in `memory.rs`.
pub unsafe fn slot(address: usize) -> &'static Slot {
    // SAFETY: never freed, and aligned by the caller's promise.
    unsafe { &*std::ptr::with_exposed_provenance(address) }
}

/// The header of a page.
///
/// # Safety
/// As in `memory.rs`.
pub unsafe fn header(page: usize) -> &'static PageHeader {
    // SAFETY: as above.
    unsafe { &*std::ptr::with_exposed_provenance(page) }
}
