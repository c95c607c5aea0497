//! The allocator of the library, with a reserve for when the C library has no memory.
//!
//! The program and its limits decide how much memory there is. A call that finds none must return
//! `DAT_INSUFFICIENT_RESOURCES` and change nothing, and a thread that serves connections has no
//! caller to return an error to. Most allocations are small and in the middle of a step that cannot be half
//! done. So they are made from the reserve if there is no other memory, and succeed; and what makes
//! something new begins with [`fill`], which gets back what has been used of the reserve, and does not
//! begin without. The rest is:
//!
//! * What is larger than the largest block, or may be, as its size is the program's or the peer's to
//!   choose, is allocated by functions that can fail (`try_reserve`), and the failure is an error of
//!   the call.
//! * What a step needs of the reserve is bounded. A loop over what has no bound begins each round with
//!   [`fill`].
//! * Posts and polls, which allocate next to nothing, do not check.
//!
//! The blocks are ordinary memory of the C library, so what is made from them is freed like everything
//! else. They are taken and put back without a lock: a forked child has its own copies.

use std::alloc::{GlobalAlloc, Layout};
use std::ptr::{copy_nonoverlapping, null_mut, write_bytes};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// Alignment of every block, in bytes: the largest of a type of this crate.
const ALIGN: usize = 128;

/// Blocks of one size.
struct Class<const BLOCKS: usize> {
    /// The blocks that there are; null where one has been taken.
    blocks: [AtomicPtr<u8>; BLOCKS],
    /// Size of each block, in bytes.
    size: usize,
}

impl<const BLOCKS: usize> Class<BLOCKS> {
    const fn new(size: usize) -> Self {
        Class {
            blocks: [const { AtomicPtr::new(null_mut()) }; BLOCKS],
            size,
        }
    }

    /// A block, or null if there is none left.
    fn take(&self) -> *mut u8 {
        let taken = |block: &AtomicPtr<u8>| block.swap(null_mut(), Ordering::AcqRel);
        let mut taken = self.blocks.iter().map(taken);
        taken.find(|block| !block.is_null()).unwrap_or(null_mut())
    }

    /// Allocates the blocks that are missing. False if there is no memory for one.
    fn fill(&self) -> bool {
        self.blocks.iter().all(|block| {
            if !block.load(Ordering::Relaxed).is_null() {
                return true;
            }
            let Ok(layout) = Layout::from_size_align(self.size, ALIGN) else {
                return false;
            };
            let new = c::alloc(layout);
            if new.is_null() {
                return false;
            }
            let (to, from) = (Ordering::Release, Ordering::Relaxed);
            if block.compare_exchange(null_mut(), new, to, from).is_err() {
                // Another thread was faster.
                // SAFETY: allocated above, and in no use.
                unsafe { c::free(new) };
            }
            true
        })
    }
}

/// The blocks of all sizes. A step of the library needs a fraction of them, and several threads may
/// be in one at the same time.
static SMALL: Class<256> = Class::new(128);
static MEDIUM: Class<96> = Class::new(512);
static LARGE: Class<32> = Class::new(2048);
static LARGER: Class<8> = Class::new(4096);
static LARGEST: Class<8> = Class::new(LIMIT);

/// Size of the largest block, in bytes.
pub(crate) const LIMIT: usize = 16 << 10;

/// Whether a block is missing: true at first.
static INCOMPLETE: AtomicBool = AtomicBool::new(true);

/// Gets back what has been used of the reserve. False if there is no memory for that: then nothing
/// new is to be begun.
#[inline]
pub(crate) fn fill() -> bool {
    !INCOMPLETE.load(Ordering::Relaxed) || fill_all()
}

/// There is no memory to begin something new.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NoMemory;

/// [`fill`] with an error.
///
/// # Errors
/// When there is no memory.
#[inline]
pub(crate) fn check() -> Result<(), NoMemory> {
    fill().then_some(()).ok_or(NoMemory)
}

#[cold]
fn fill_all() -> bool {
    // First, so that a block that another thread takes meanwhile is noticed.
    INCOMPLETE.store(false, Ordering::SeqCst);
    // The large ones first: they are the hardest to get.
    let filled = LARGEST.fill() && LARGER.fill() && LARGE.fill() && MEDIUM.fill() && SMALL.fill();
    if !filled {
        INCOMPLETE.store(true, Ordering::SeqCst);
    }
    filled
}

/// A block for `layout`, or null.
#[cold]
#[inline(never)]
fn take(layout: Layout) -> *mut u8 {
    if layout.align() > ALIGN {
        return null_mut();
    }
    let classes: [(usize, &dyn Fn() -> *mut u8); 5] = [
        (SMALL.size, &|| SMALL.take()),
        (MEDIUM.size, &|| MEDIUM.take()),
        (LARGE.size, &|| LARGE.take()),
        (LARGER.size, &|| LARGER.take()),
        (LARGEST.size, &|| LARGEST.take()),
    ];
    let fitting = classes.iter().filter(|(size, _)| *size >= layout.size());
    let block = fitting
        .map(|(_, take)| take())
        .find(|block| !block.is_null());
    INCOMPLETE.store(true, Ordering::SeqCst);
    block.unwrap_or(null_mut())
}

/// The functions of the C library: memory by any of the first three is freed by `free`, whatever its
/// size and alignment are.
mod c {
    use std::alloc::Layout;
    use std::ptr::null_mut;

    /// Whether `malloc` aligns as the layout asks.
    fn is_plain(layout: Layout) -> bool {
        layout.align() <= align_of::<libc::max_align_t>() && layout.align() <= layout.size()
    }

    /// Uninitialised memory, or null.
    pub fn alloc(layout: Layout) -> *mut u8 {
        if is_plain(layout) {
            // SAFETY: any size may be asked for.
            return unsafe { libc::malloc(layout.size()) }.cast();
        }
        let align = layout.align().max(size_of::<usize>());
        let mut new = null_mut();
        // SAFETY: a place for a pointer; the alignment is a power of two and that of a pointer or
        // more.
        match unsafe { libc::posix_memalign(&mut new, align, layout.size()) } {
            0 => new.cast(),
            _ => null_mut(),
        }
    }

    /// Memory that is zero, or null; `None` if the alignment is more than that of `calloc`.
    pub fn alloc_zeroed(layout: Layout) -> Option<*mut u8> {
        // SAFETY: any size may be asked for.
        is_plain(layout).then(|| unsafe { libc::calloc(layout.size(), 1) }.cast())
    }

    /// Moves `at` to memory of another size; null, and `at` is as it was. `None` if the alignment is
    /// more than that of `realloc`.
    ///
    /// # Safety
    /// `at` is from this module and in use.
    pub unsafe fn realloc(at: *mut u8, new: Layout) -> Option<*mut u8> {
        // SAFETY: the caller's promise; any size may be asked for.
        is_plain(new).then(|| unsafe { libc::realloc(at.cast(), new.size()) }.cast())
    }

    /// Frees memory.
    ///
    /// # Safety
    /// `at` is from this module, and is not used from now on.
    pub unsafe fn free(at: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { libc::free(at.cast()) };
    }
}

/// The allocator: the one of the C library, then the reserve.
struct Allocator;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

// SAFETY: memory has the size and the alignment of the layout at least; that of blocks is that of
// all other memory. Nothing here unwinds.
unsafe impl GlobalAlloc for Allocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let new = c::alloc(layout);
        if new.is_null() { take(layout) } else { new }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match c::alloc_zeroed(layout) {
            Some(new) if !new.is_null() => new,
            _ => {
                // SAFETY: the caller's promise.
                let new = unsafe { self.alloc(layout) };
                if !new.is_null() {
                    // SAFETY: memory of at least this size.
                    unsafe { write_bytes(new, 0, layout.size()) };
                }
                new
            }
        }
    }

    #[inline]
    unsafe fn dealloc(&self, at: *mut u8, _: Layout) {
        // SAFETY: the caller's promise: from one of the other functions.
        unsafe { c::free(at) };
    }

    #[inline]
    unsafe fn realloc(&self, at: *mut u8, old: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's promise: the size is valid with this alignment.
        let layout = unsafe { Layout::from_size_align_unchecked(size, old.align()) };
        // SAFETY: the caller's promise: from one of the other functions.
        match unsafe { c::realloc(at, layout) } {
            Some(new) if !new.is_null() => new,
            _ => {
                // SAFETY: the caller's promise.
                let new = unsafe { self.alloc(layout) };
                if new.is_null() && size <= old.size() {
                    // As it is, the memory is large enough.
                    return at;
                }
                if !new.is_null() {
                    // SAFETY: each has at least this size. The old memory is not used from now on.
                    unsafe {
                        copy_nonoverlapping(at, new, old.size().min(size));
                        c::free(at);
                    }
                }
                new
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_taken_and_put_back() {
        let class: Class<3> = Class::new(100);
        assert!(class.take().is_null());
        assert!(class.fill());
        let taken: Vec<*mut u8> = (0..3).map(|_| class.take()).collect();
        assert!(
            taken
                .iter()
                .all(|block| !block.is_null() && block.addr() % ALIGN == 0)
        );
        assert!(class.take().is_null());
        for block in taken {
            // SAFETY: a block of that size, which this test has taken.
            unsafe {
                write_bytes(block, 0xff, 100);
                c::free(block);
            }
        }
        assert!(class.fill() && class.fill());
        for _ in 0..3 {
            // SAFETY: as above.
            unsafe { c::free(class.take()) };
        }
    }
}
