//! The handle arena: handles whose validity can be checked.
//!
//! A handle is the address of a 16-byte slot in a range of addresses that is reserved once.
//! Slots are allocated in ascending order, so the address serves as its own generation number: a
//! stale handle is the address of an empty slot. Only when all of the range has been used, after some
//! thousand million handles, are the pages used again whose slots are all empty, in the same order.
//! A check is one test of range and alignment and one load. The first word of a slot is the
//! provider table, because other vendors' libdat and the macros of `udat_redirection.h` follow a
//! handle to find it.
//!
//! Pages whose slots have all been allocated and emptied are discarded, as many at a time as there are in a page of
//! the kernel; they then read as zero, as empty slots do. A forked child gets all pages like that: none of
//! its parent's handles is valid there, and the handles that it makes are others.

use std::ffi::c_void;
use std::ptr::null_mut;

use super::memory::{self, CHUNK, PAGE};
use crate::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use crate::sync::{Mutex, shared_static};

/// A slot. The tag in the low bits of `object` identifies the type of the object.
#[repr(C, align(16))]
pub(super) struct Slot {
    /// The provider table; null in an empty slot.
    pub table: AtomicPtr<c_void>,
    /// The object with its tag; null in an empty slot.
    pub object: AtomicPtr<c_void>,
}

/// The first slot of each page, which is never a handle. Read as a slot it is empty: it has no
/// table, and no tag where the object would be.
#[repr(C, align(16))]
pub(super) struct PageHeader {
    /// Null.
    pub table: AtomicPtr<c_void>,
    /// Slots of this page that are in use, in steps of [`LIVE`].
    pub live: AtomicUsize,
}

/// The step of [`PageHeader::live`]. A multiple of it has the tag 0.
const LIVE: usize = super::TAG_MASK + 1;

const SLOT: usize = 16;
// loom's atomics are larger; its models have a memory of their own (`memory_model.rs`).
#[cfg(not(loom))]
const _: () = assert!(size_of::<Slot>() == SLOT && size_of::<PageHeader>() <= SLOT);

shared_static! {
    static SLOTS: Slots = Slots {
        base: AtomicUsize::new(0),
        used: AtomicUsize::new(0),
        dispatched: AtomicUsize::new(0),
    };
    /// Bytes reserved, 0 before the first handle.
    static RESERVED: AtomicUsize = AtomicUsize::new(0);
    static GROWTH: Mutex<Growth> = Mutex::new(Growth {
        committed: 0,
        next: 0,
        wrapped: false,
        diverted: false,
    });
}

/// In a forked child: no handle of the parent is valid. Their slots are not used again.
#[cfg(not(loom))]
static EMPTY_ALL: fn() = || {
    // SAFETY: this is the only thread, and it is in no function of this module. Each of the two
    // numbers is that of before or after a change.
    let committed = unsafe {
        crate::lock::unlock_abandoned(&GROWTH);
        (*GROWTH.data_ptr()).committed
    };
    // SAFETY: the committed part of the reservation, of which nothing is used.
    unsafe { memory::discard(SLOTS.base.load(Ordering::Relaxed), committed) };
};

/// Every look-up reads two of them, so they share a cache line.
struct Slots {
    /// Address of the first page, 0 before the first handle.
    base: AtomicUsize,
    /// Number of slots from `base` on that are allocated, page headers included. Set after the
    /// slot is filled.
    used: AtomicUsize,
    /// The same number for exported functions, which call the provider of such a handle at once; 0
    /// when they are [diverted](divert).
    dispatched: AtomicUsize,
}

struct Growth {
    /// Bytes from `base` on that are accessible.
    committed: usize,
    /// Offset of the next slot, if that is not the first of a page; otherwise of the page to begin
    /// or to search from.
    next: usize,
    /// Whether all pages have been used.
    wrapped: bool,
    /// Whether exported functions find no handle.
    diverted: bool,
}

/// Whether the handle is the address of a page header or of one of the first slots, of which there
/// are as many as `bound` says.
#[inline(always)]
fn is_slot(handle: *mut c_void, bound: &AtomicUsize) -> bool {
    // The bound is loaded first. It is 0 until `base` is set, so that no value passes before, not
    // even a small number.
    let used = bound.load(Ordering::Acquire);
    let offset = handle
        .addr()
        .wrapping_sub(SLOTS.base.load(Ordering::Relaxed));
    // The number of the slot. An address between slots becomes a large number.
    offset.rotate_right(SLOT.trailing_zeros()) < used
}

/// Calls `f` with the slot of a handle, if [`is_slot`]. The slot may be empty.
#[inline(always)]
fn with_slot<R>(
    handle: *mut c_void,
    bound: &AtomicUsize,
    f: impl FnOnce(&'static Slot) -> R,
) -> Option<R> {
    // The slot is not returned as an `Option`, which would be tested once more.
    if !is_slot(handle, bound) {
        return None;
    }
    // SAFETY: below `used`, so committed; the base is aligned to pages, so the address is aligned
    // as the offset is.
    Some(f(unsafe { memory::slot(handle.addr()) }))
}

/// The object in the slot of a handle, with its tag; null if the slot is empty, or if the handle is the
/// address of no slot.
#[inline(always)]
pub(super) fn object(handle: *mut c_void) -> *mut c_void {
    if !is_slot(handle, &SLOTS.used) {
        return null_mut();
    }
    // SAFETY: just checked.
    unsafe { object_in(handle) }
}

/// [`object`] for a handle that is the address of a slot.
///
/// # Safety
/// The handle is the address of a slot, which may be empty, or of a page header.
#[inline(always)]
pub(super) unsafe fn object_in(handle: *mut c_void) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { memory::slot(handle.addr()) }
        .object
        .load(Ordering::Acquire)
}

/// The provider table in the slot of a handle, as [`object`].
#[inline(always)]
pub(super) fn table(handle: *mut c_void) -> Option<*mut c_void> {
    with_slot(handle, &SLOTS.used, |slot| {
        slot.table.load(Ordering::Acquire)
    })
}

/// [`table`] for exported functions; `None` when they are diverted.
#[inline(always)]
pub(super) fn dispatched_table(handle: *mut c_void) -> Option<*mut c_void> {
    with_slot(handle, &SLOTS.dispatched, |slot| {
        slot.table.load(Ordering::Acquire)
    })
}

/// Diverts exported functions: [`dispatched_table`] finds nothing from now on.
pub(super) fn divert() {
    let mut growth = GROWTH.lock();
    growth.diverted = true;
    SLOTS.dispatched.store(0, Ordering::Relaxed);
}

/// Whether the address lies in the reservation.
pub(super) fn in_range(handle: *mut c_void) -> bool {
    let reserved = RESERVED.load(Ordering::Acquire);
    handle
        .addr()
        .wrapping_sub(SLOTS.base.load(Ordering::Relaxed))
        < reserved
}

/// Fills a new slot and gives its address: the handle. `None` when address space or memory is
/// exhausted.
pub(super) fn insert(table: *mut c_void, object: *mut c_void) -> Option<*mut c_void> {
    debug_assert!(!table.is_null() && !object.is_null());
    #[cfg(not(loom))]
    if SLOTS.used.load(Ordering::Relaxed) == 0 {
        crate::process::in_child(&EMPTY_ALL);
    }
    let mut growth = GROWTH.lock();
    if RESERVED.load(Ordering::Relaxed) == 0 {
        let (base, size) = memory::reserve()?;
        SLOTS.base.store(base, Ordering::Relaxed);
        RESERVED.store(size, Ordering::Release);
    }
    let offset = growth.take()?;
    let address = SLOTS.base.load(Ordering::Relaxed) + offset;
    // SAFETY: committed, aligned, and allocated here only.
    let slot = unsafe { memory::slot(address) };
    page_header(address).live.fetch_add(LIVE, Ordering::Relaxed);
    // Release: a thread with a stale handle may read a slot that is used again.
    slot.object.store(object, Ordering::Release);
    slot.table.store(table, Ordering::Release);
    if !growth.wrapped {
        SLOTS.used.store(offset / SLOT + 1, Ordering::Release);
        if !growth.diverted {
            SLOTS.dispatched.store(offset / SLOT + 1, Ordering::Release);
        }
    }
    Some(std::ptr::with_exposed_provenance_mut(address))
}

/// Empties the slot if it still holds `object`. `false` if another thread was faster.
pub(super) fn remove(handle: *mut c_void, object: *mut c_void) -> bool {
    let Some(slot) = with_slot(handle, &SLOTS.used, |slot| slot) else {
        return false;
    };
    if slot
        .object
        .compare_exchange(object, null_mut(), Ordering::AcqRel, Ordering::Relaxed)
        .is_err()
    {
        return false;
    }
    slot.table.store(null_mut(), Ordering::Release);
    let address = handle.addr();
    if page_header(address).live.fetch_sub(LIVE, Ordering::AcqRel) == LIVE {
        discard_page(address);
    }
    true
}

fn page_of(address: usize) -> usize {
    address - address % PAGE
}

fn page_header(address: usize) -> &'static PageHeader {
    // SAFETY: the page of an allocated slot.
    unsafe { memory::header(page_of(address)) }
}

/// Returns the memory of the page to the kernel if all its slots were allocated and none is in
/// use. Where the pages of the kernel are larger, the memory is that of all pages in one of those.
fn discard_page(address: usize) {
    let growth = GROWTH.lock();
    let base = SLOTS.base.load(Ordering::Relaxed);
    let unit = memory::kernel_page().max(PAGE);
    // The reservation begins with a page of the kernel.
    let first = page_of(address) - base;
    let first = first - first % unit;
    let mut pages = (first..first + unit).step_by(PAGE);
    // A page whose slots were all allocated is committed.
    if pages.all(|page| {
        growth.is_full(page) && page_header(base + page).live.load(Ordering::Acquire) == 0
    }) {
        // SAFETY: all its slots will remain empty, and an empty slot reads as zero.
        unsafe { memory::discard(base + first, unit) };
    }
}

impl Growth {
    /// Takes a slot: its offset.
    fn take(&mut self) -> Option<usize> {
        if self.next.is_multiple_of(PAGE) {
            self.next = self.begin_page()? + SLOT; // behind the page header
        }
        let offset = self.next;
        self.next += SLOT;
        Some(offset)
    }

    /// The offset of a page of which no slot is in use.
    fn begin_page(&mut self) -> Option<usize> {
        let reserved = RESERVED.load(Ordering::Relaxed);
        if self.next < self.committed && !self.wrapped {
            return Some(self.next);
        }
        if !self.wrapped && self.next + CHUNK <= reserved {
            self.commit()?;
            return Some(self.next);
        }
        self.wrapped = true;
        let base = SLOTS.base.load(Ordering::Relaxed);
        let pages = (self.next..self.committed)
            .chain(0..self.next)
            .step_by(PAGE);
        // Acquire: the page was emptied before.
        let is_empty = |page: &usize| page_header(base + page).live.load(Ordering::Acquire) == 0;
        pages.into_iter().find(is_empty)
    }

    /// Whether all slots of the page at this offset were allocated.
    fn is_full(&self, page: usize) -> bool {
        let being_filled = page < self.next && self.next < page + PAGE;
        !being_filled && (self.wrapped || page + PAGE <= self.next)
    }

    fn commit(&mut self) -> Option<()> {
        if self.committed + CHUNK > RESERVED.load(Ordering::Relaxed) {
            return None;
        }
        // SAFETY: inside the reservation.
        if !unsafe { memory::commit(SLOTS.base.load(Ordering::Relaxed) + self.committed) } {
            return None;
        }
        self.committed += CHUNK;
        Some(())
    }
}
