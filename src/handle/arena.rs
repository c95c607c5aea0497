//! The handle arena: handles that can be checked without trusting them.
//!
//! A handle is the address of a 16-byte slot in a range of addresses that is reserved once.
//! Slots are handed out in order and never again, so the address is its own generation: a
//! stale handle is the address of an empty slot, for ever. A check is a range test, an
//! alignment test and one load. The first word of a slot is the provider table, because other
//! vendors' libdat and the macros of `udat_redirection.h` follow a handle to find it.
//!
//! Pages whose slots have all been given out and emptied go back to the kernel; they then read
//! as zero, which is what an empty slot reads as.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use parking_lot::Mutex;

const PAGE: usize = 4096;
/// Address space to reserve, the largest that the machine grants: valgrind, memory limits and
/// strict overcommit grant less. 1 TiB holds 68 thousand million handles.
const SIZES: [usize; 4] = [1 << 40, 1 << 36, 1 << 32, 1 << 28];
/// Made accessible at a time; it costs memory only when touched.
const CHUNK: usize = 1 << 20;

/// A slot. The tag in the low bits of `object` tells the type of what it points to.
#[repr(C, align(16))]
pub(super) struct Slot {
    /// The provider table; null in an empty slot.
    pub table: AtomicPtr<c_void>,
    /// The object with its tag; null in an empty slot.
    pub object: AtomicPtr<c_void>,
}

/// Stands in the first slot of each page, which is no handle.
#[repr(C, align(16))]
struct PageHeader {
    /// Slots of this page that are in use.
    live: AtomicU32,
}

const SLOT: usize = size_of::<Slot>();
const _: () = assert!(SLOT == 16 && size_of::<PageHeader>() <= SLOT);

/// Address of the first page, 0 before the first handle.
static BASE: AtomicUsize = AtomicUsize::new(0);
/// Bytes from [`BASE`] in which slots have been handed out. Set after the slot is filled.
static USED: AtomicUsize = AtomicUsize::new(0);
/// Bytes reserved from [`BASE`] on, 0 before the first handle.
static RESERVED: AtomicUsize = AtomicUsize::new(0);
static GROWTH: Mutex<Growth> = Mutex::new(Growth {
    committed: 0,
    next: 0,
});

struct Growth {
    committed: usize,
    /// Offset of the next slot.
    next: usize,
}

/// The slot of a handle, if the handle is an address that this arena has handed out. The slot
/// may be empty.
#[inline]
pub(super) fn slot(handle: *mut c_void) -> Option<&'static Slot> {
    let address = handle as usize;
    let offset = address.wrapping_sub(BASE.load(Ordering::Relaxed));
    // USED is 0 until BASE is set, so an unset BASE passes no test.
    if offset >= USED.load(Ordering::Acquire)
        || !offset.is_multiple_of(SLOT)
        || offset.is_multiple_of(PAGE)
    {
        return None;
    }
    // SAFETY: inside the committed part of the reservation, which stays mapped, aligned, and
    // no page header; `Slot` consists of atomics for which every bit pattern is valid.
    Some(unsafe { &*(address as *const Slot) })
}

/// Whether the address lies in the reservation.
pub(super) fn in_range(handle: *mut c_void) -> bool {
    let reserved = RESERVED.load(Ordering::Acquire);
    (handle as usize).wrapping_sub(BASE.load(Ordering::Relaxed)) < reserved
}

/// Fills a new slot and gives its address: the handle. `None` when address space or memory is
/// used up.
pub(super) fn insert(table: *mut c_void, object: *mut c_void) -> Option<*mut c_void> {
    debug_assert!(!table.is_null() && !object.is_null());
    let mut growth = GROWTH.lock();
    if RESERVED.load(Ordering::Relaxed) == 0 {
        reserve()?;
    }
    if growth.next.is_multiple_of(PAGE) {
        growth.next += SLOT; // the page header
    }
    let offset = growth.next;
    if offset + SLOT > growth.committed {
        growth.commit()?;
    }
    growth.next += SLOT;
    let address = BASE.load(Ordering::Relaxed) + offset;
    // SAFETY: committed, aligned, handed out to nobody else.
    let slot = unsafe { &*(address as *const Slot) };
    page_header(address).live.fetch_add(1, Ordering::Relaxed);
    slot.object.store(object, Ordering::Relaxed);
    slot.table.store(table, Ordering::Release);
    USED.store(offset + SLOT, Ordering::Release);
    Some(address as *mut c_void)
}

/// Empties the slot if it still holds `object`. `false` if somebody else was faster.
pub(super) fn remove(handle: *mut c_void, object: *mut c_void) -> bool {
    let Some(slot) = slot(handle) else {
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
    let address = handle as usize;
    if page_header(address).live.fetch_sub(1, Ordering::AcqRel) == 1 {
        give_back(address);
    }
    true
}

fn page_header(address: usize) -> &'static PageHeader {
    // SAFETY: the first slot of the page of a handed-out slot: committed and never a handle.
    unsafe { &*((address & !(PAGE - 1)) as *const PageHeader) }
}

/// Returns the memory of the page if all its slots were handed out and none is in use.
fn give_back(address: usize) {
    let growth = GROWTH.lock();
    let page = address & !(PAGE - 1);
    let full = page + PAGE - BASE.load(Ordering::Relaxed) <= growth.next;
    if full && page_header(address).live.load(Ordering::Acquire) == 0 {
        // SAFETY: our own anonymous memory; all slots in it are empty for good, and reading
        // them as zero says the same.
        unsafe { libc::madvise(page as *mut c_void, PAGE, libc::MADV_DONTNEED) };
    }
}

/// Reserves the address space; the lock of [`GROWTH`] is held.
fn reserve() -> Option<()> {
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
            // Debuggers and core dumps have no use for it.
            // SAFETY: the mapping just made.
            unsafe { libc::madvise(base, size, libc::MADV_DONTDUMP) };
            BASE.store(base as usize, Ordering::Relaxed);
            RESERVED.store(size, Ordering::Release);
            return Some(());
        }
    }
    None
}

impl Growth {
    fn commit(&mut self) -> Option<()> {
        if self.committed + CHUNK > RESERVED.load(Ordering::Relaxed) {
            return None;
        }
        let start = BASE.load(Ordering::Relaxed) + self.committed;
        // SAFETY: inside our reservation.
        let result = unsafe {
            libc::mprotect(
                start as *mut c_void,
                CHUNK,
                libc::PROT_READ | libc::PROT_WRITE,
            )
        };
        if result != 0 {
            return None;
        }
        self.committed += CHUNK;
        Some(())
    }
}
