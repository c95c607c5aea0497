//! Finds the entry of a key: a hash table without collisions, which is read without a lock.
//!
//! Keys are random numbers, and the lowest bits of a key are the number of its slot. Who makes a
//! key draws numbers until one has a free slot, so that a lookup never searches. A directory that
//! becomes too full is replaced by one of twice the slots: keys that have different slots in the one
//! have different slots in the other.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};

use super::key_entry::KeyEntry;

/// A slot: the entry of a key, or null.
type Slot = AtomicPtr<KeyEntry>;

/// What stands before the slots of a directory in memory.
#[repr(C)]
struct Header {
    /// Number of slots, which is a power of two, less one.
    mask: u32,
    /// The slots begin here.
    slots: [Slot; 0],
}

/// The directory before the first key: one slot, which stays empty.
#[repr(C)]
struct Empty(Header, Slot);

static EMPTY: Empty = Empty(Header { mask: 0, slots: [] }, AtomicPtr::new(null_mut()));

/// The directory that lookups use.
pub(super) struct CurrentDirectory(AtomicPtr<Header>);

/// A directory that lookups do not use yet, or no longer. Dropping it frees it.
pub(super) struct OwnedDirectory(NonNull<Header>);

// SAFETY: memory that only the owner uses.
unsafe impl Send for OwnedDirectory {}

/// The slot of a key.
///
/// # Safety
/// `header` is that of a directory, which lives for `'a`.
#[inline(always)]
unsafe fn slot<'a>(header: *const Header, key: u32) -> &'a Slot {
    // SAFETY: the caller's promise. There are as many slots behind the header as the mask states.
    unsafe {
        let index = key & (*header).mask;
        let slots: *const Slot = (&raw const (*header).slots).cast();
        &*slots.add(index as usize)
    }
}

impl CurrentDirectory {
    /// The directory before the first key.
    pub const fn empty() -> CurrentDirectory {
        CurrentDirectory(AtomicPtr::new((&raw const EMPTY).cast_mut().cast()))
    }

    /// In a forked child: there are no keys. The directory of the parent stays where it is.
    pub fn forget(&self) {
        let empty = (&raw const EMPTY).cast_mut().cast();
        self.0.store(empty, Ordering::Relaxed);
    }

    /// The entry in the slot of a key, in a read-side section. It may be that of another key.
    #[inline(always)]
    pub fn find(&self, key: u32) -> Option<&'static KeyEntry> {
        let header = self.0.load(Ordering::Acquire);
        // SAFETY: the directory is freed when all sections have ended that may have found it. A
        // slot holds null or an entry, which lives as long as the process.
        unsafe { slot(header, key).load(Ordering::Acquire).as_ref() }
    }

    /// Sets the slot of a key. Only for who holds the lock under which directories are replaced.
    pub fn set(&self, key: u32, entry: Option<&'static KeyEntry>) {
        let entry = entry.map_or(null_mut(), |entry| std::ptr::from_ref(entry).cast_mut());
        // SAFETY: the caller's lock keeps the directory.
        let slot = unsafe { slot(self.0.load(Ordering::Relaxed), key) };
        slot.store(entry, Ordering::Release);
    }

    /// Replaces the directory, under that lock. The old one may be dropped when all sections have
    /// ended; `None` if it is the one before the first key.
    pub fn replace(&self, new: OwnedDirectory) -> Option<OwnedDirectory> {
        let header = new.0.as_ptr();
        std::mem::forget(new);
        let old = self.0.swap(header, Ordering::AcqRel);
        let empty = (&raw const EMPTY).cast_mut().cast();
        NonNull::new(old)
            .filter(|_| old != empty)
            .map(OwnedDirectory)
    }

    /// Calls `f` for every entry, in a read-side section.
    pub fn for_each(&self, mut f: impl FnMut(&'static KeyEntry)) {
        let header = self.0.load(Ordering::Acquire);
        // SAFETY: as in `find`.
        let mask = unsafe { (*header).mask };
        (0..=mask)
            // SAFETY: as in `find`.
            .filter_map(|index| unsafe { slot(header, index).load(Ordering::Acquire).as_ref() })
            .for_each(&mut f);
    }
}

impl OwnedDirectory {
    /// A directory of empty slots, whose number is a power of two; `None` if there is no memory.
    pub fn new(slots: u32) -> Option<OwnedDirectory> {
        debug_assert!(slots.is_power_of_two());
        let layout = Self::layout(slots);
        // SAFETY: the layout has a size. Zeros are a header and null pointers.
        let header = unsafe { alloc_zeroed(layout) }.cast::<Header>();
        let header = NonNull::new(header)?;
        // SAFETY: just allocated.
        unsafe { (*header.as_ptr()).mask = slots - 1 };
        Some(OwnedDirectory(header))
    }

    fn layout(slots: u32) -> Layout {
        let slots = Layout::array::<Slot>(slots as usize);
        let whole = slots.and_then(|slots| Layout::new::<Header>().extend(slots));
        match whole {
            Ok((layout, _)) => layout,
            Err(_) => unreachable!("a directory has at most MAX_SLOTS slots"),
        }
    }

    /// Sets the slot of a key.
    pub fn set(&mut self, key: u32, entry: &'static KeyEntry) {
        // SAFETY: our own directory.
        let slot = unsafe { slot(self.0.as_ptr(), key) };
        slot.store(std::ptr::from_ref(entry).cast_mut(), Ordering::Relaxed);
    }
}

impl Drop for OwnedDirectory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and nothing refers to it any more.
        unsafe {
            let slots = (*self.0.as_ptr()).mask + 1;
            dealloc(self.0.as_ptr().cast(), Self::layout(slots));
        }
    }
}
