//! Memory of tests from which pages are taken away.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

pub use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};
use rustix::mm::{mmap_anonymous, mprotect, munmap};

/// Pages of a mapping of their own, which is removed by the drop.
///
/// No other thread of the process gets memory where pages were unmapped: the mapping is at an address
/// that the kernel would not choose, and which no other `TestPages` has. (The kernel chooses the highest
/// addresses that are free. A hole among those is filled by the next mapping, as the stack of the thread
/// of another test; the memory under test is there again, and what that test does to it goes into the
/// stack.)
pub struct TestPages {
    at: *mut u8,
    len: usize,
}

/// The next address that is given out: above the random address at which a process has its challenge records
/// (`transport/shm/challenge.rs`), which has 38 bits, and below 39 bits, which is what the smallest address spaces of 64
/// bits have; of 32 bits: above the program and its heap.
static NEXT: AtomicUsize = AtomicUsize::new(match size_of::<usize>() {
    4 => 0x6000_0000,
    _ => (1u64 << 38) as usize,
});

/// What is left free behind each mapping.
const GAP: usize = match size_of::<usize>() {
    4 => 1 << 12,
    _ => 1 << 20,
};

impl TestPages {
    /// So many private pages that can be read and written.
    pub fn new(count: usize) -> TestPages {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        TestPages::with(count, access, MapFlags::PRIVATE)
    }

    pub fn with(count: usize, access: ProtFlags, flags: MapFlags) -> TestPages {
        let len = count * TestPages::page();
        let at = NEXT.fetch_add(len.next_multiple_of(GAP) + GAP, Ordering::Relaxed);
        let at = std::ptr::with_exposed_provenance_mut(at);
        let flags = flags | MapFlags::FIXED_NOREPLACE;
        // SAFETY: a new mapping, which replaces none.
        let at = unsafe { mmap_anonymous(at, len, access, flags) }.unwrap();
        let at = at.cast();
        TestPages { at, len }
    }

    /// The bytes of a page.
    pub fn page() -> usize {
        rustix::param::page_size()
    }

    /// The address of a byte of the mapping, or of the first one behind it.
    pub fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset <= self.len);
        self.at.wrapping_add(offset)
    }

    /// The address of a byte of the mapping, as a number.
    pub fn addr(&self, offset: usize) -> u64 {
        self.at(offset).expose_provenance() as u64
    }

    /// The bytes of the mapping.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The address and the bytes of some of the pages.
    fn range(&self, pages: Range<usize>) -> (*mut std::ffi::c_void, usize) {
        let (from, to) = (
            pages.start * TestPages::page(),
            pages.end * TestPages::page(),
        );
        assert!(from < to && to <= self.len);
        (self.at(from).cast(), to - from)
    }

    /// Unmaps some of the pages.
    pub fn unmap(&self, pages: Range<usize>) {
        let (at, len) = self.range(pages);
        // SAFETY: pages of the mapping, to which tests have no reference.
        unsafe { munmap(at, len) }.unwrap();
    }

    /// Changes what can be done with some of the pages.
    pub fn protect(&self, pages: Range<usize>, access: MprotectFlags) {
        let (at, len) = self.range(pages);
        // SAFETY: pages of the mapping, to which tests have no reference.
        unsafe { mprotect(at, len, access) }.unwrap();
    }
}

impl Drop for TestPages {
    fn drop(&mut self) {
        // SAFETY: pages that only their test knew, or where nothing is mapped any more.
        unsafe { munmap(self.at.cast(), self.len) }.unwrap();
    }
}

#[test]
fn no_mapping_of_others_gets_into_a_hole() {
    let pages = TestPages::new(3);
    pages.unmap(1..2);
    let others: Vec<_> = (0..100)
        .map(|_| {
            let null = std::ptr::null_mut();
            // SAFETY: a new mapping, to which nothing refers.
            unsafe { mmap_anonymous(null, 4096, ProtFlags::READ, MapFlags::PRIVATE) }.unwrap()
        })
        .collect();
    assert!(!others.contains(&pages.at(TestPages::page()).cast()));
    for other in others {
        // SAFETY: as above.
        unsafe { munmap(other, 4096) }.unwrap();
    }
}
