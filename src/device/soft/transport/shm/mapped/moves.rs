//! Moves pages of the program from private memory into the memory file, and back, while other
//! threads use them.
//!
//! Between the first step and the last one the pages are missing or write-protected, and a thread
//! that uses them waits for this one. So this thread must not wait for any other meanwhile: it
//! takes no lock, allocates nothing, and runs no signal handler. The pages may have objects of this library
//! on them, since programs register whole pages around what they have allocated: so it works with what is on
//! its stack alone, which does not move.
//!
//! Into the file: the page-table entries of the private pages move to a range aside
//! (`UFFDIO_MOVE`), where this thread alone finds them; it copies their contents to the file, and
//! a mapping of the file takes their place (`mremap`). Out of the file: the mapping of the file is
//! write-protected (`UFFDIO_WRITEPROTECT`), the contents of the file are read into private memory,
//! and that takes the place of the mapping.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, MremapFlags, ProtFlags};

use super::proc_maps::Vma;
use super::userfault::{FaultMode, Requests};
use crate::signals::SignalsBlocked;

/// Bytes that move at once. It limits how long other threads wait, and how much memory is needed
/// twice.
pub(crate) const STEP: u64 = 4 << 20;

/// A mapping of ours that may take the place of one of the program. The drop unmaps it.
pub(super) struct Mapping {
    /// Address of the first byte.
    at: *mut libc::c_void,
    /// Size in bytes.
    len: usize,
}

/// Bytes of a range.
pub(crate) fn size(range: &Range<u64>) -> usize {
    (range.end - range.start) as usize
}

fn pointer(at: u64) -> *mut libc::c_void {
    std::ptr::with_exposed_provenance_mut(at as usize)
}

impl Mapping {
    /// Private memory with all its pages allocated.
    pub fn populated(len: usize) -> Result<Mapping, Errno> {
        let mapping = Mapping::reserve(len)?;
        mapping.advise(Advice::LinuxPopulateWrite)?;
        Ok(mapping)
    }

    /// Private memory without pages.
    fn reserve(len: usize) -> Result<Mapping, Errno> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let null = std::ptr::null_mut();
        // SAFETY: a new mapping at an address that the kernel chooses.
        let at = unsafe { rustix::mm::mmap_anonymous(null, len, protection, MapFlags::PRIVATE) }?;
        Ok(Mapping { at, len })
    }

    /// A part of the file with all its pages allocated. A child that is made without the handlers of
    /// `fork` does not inherit the mapping, so that it does not share the memory.
    fn of_file(file: BorrowedFd<'_>, part: &Range<u64>) -> Result<Mapping, Errno> {
        let mode = FallocateFlags::empty();
        rustix::fs::fallocate(file, mode, part.start, size(part) as u64)?;
        // SAFETY: as above.
        let at = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                size(part),
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::NORESERVE,
                file,
                part.start,
            )
        }?;
        let mapping = Mapping {
            at,
            len: size(part),
        };
        mapping.advise(Advice::LinuxDontFork)?;
        mapping.advise(Advice::LinuxPopulateWrite)?;
        Ok(mapping)
    }

    fn advise(&self, advice: Advice) -> Result<(), Errno> {
        // SAFETY: our own mapping.
        unsafe { rustix::mm::madvise(self.at, self.len, advice) }
    }

    fn range(&self) -> Range<u64> {
        let start = self.at.expose_provenance() as u64;
        start..start + self.len as u64
    }

    /// Fills the mapping with the contents of the file from `offset` on.
    pub fn read(&mut self, file: BorrowedFd<'_>, offset: u64) -> Result<(), Errno> {
        let mut done = 0;
        while done < self.len {
            // SAFETY: the rest of the mapping, which is ours alone.
            let rest = unsafe {
                std::slice::from_raw_parts_mut(
                    self.at.byte_add(done).cast::<MaybeUninit<u8>>(),
                    self.len - done,
                )
            };
            match rustix::io::pread(file, rest, offset + done as u64) {
                Ok(([], _)) => return Err(Errno::IO),
                Ok((read, _)) => done += read.len(),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Sets the protection to that of a mapping of the program.
    pub fn protect_like(&self, like: &Vma) -> Result<(), Errno> {
        let mut protection = MprotectFlags::empty();
        protection.set(MprotectFlags::READ, like.read);
        protection.set(MprotectFlags::WRITE, like.write);
        protection.set(MprotectFlags::EXEC, like.execute);
        // SAFETY: our own mapping.
        unsafe { rustix::mm::mprotect(self.at, self.len, protection) }
    }

    /// Moves the mapping to the address `to`, in place of what is mapped there, in one atomic step.
    ///
    /// # Safety
    /// The mapping has the contents that the program expects there.
    pub unsafe fn move_to(self, to: u64) -> Result<(), (Errno, Mapping)> {
        let flags = MremapFlags::MAYMOVE;
        // SAFETY: our own mapping moves; the caller answers for the one that it replaces.
        let moved =
            unsafe { rustix::mm::mremap_fixed(self.at, self.len, self.len, flags, pointer(to)) };
        match moved {
            Ok(_) => {
                std::mem::forget(self);
                Ok(())
            }
            Err(error) => Err((error, self)),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: our own mapping, and nothing refers to it any more.
        let _ = unsafe { rustix::mm::munmap(self.at, self.len) };
    }
}

/// Moves private pages, all of one mapping, into the file.
///
/// # Errors
/// The pages are private as before.
pub(super) fn move_into_file(
    faults: Requests<'_>,
    file: BorrowedFd<'_>,
    pages: &Range<u64>,
) -> Result<(), Errno> {
    let aside = Mapping::reserve(size(pages))?;
    let new = Mapping::of_file(file, pages)?;
    faults.register(&aside.range(), FaultMode::Missing)?;
    faults.register(pages, FaultMode::Missing)?;
    // A child that is made without the handlers of `fork` at this moment would have zeros there.
    set_inherited(pages, false);
    // A signal handler could wait for the pages.
    let blocked = SignalsBlocked::all();
    // SAFETY: a thread that uses the pages waits until they are back, or in the file.
    let (taken, result) = unsafe { faults.move_pages(pages, aside.range().start) };
    let result = match result {
        Ok(()) => {
            // SAFETY: two mappings of ours of that size.
            unsafe { std::ptr::copy_nonoverlapping(aside.at.cast::<u8>(), new.at.cast(), new.len) };
            // SAFETY: it has the same contents.
            match unsafe { new.move_to(pages.start) } {
                Ok(()) => Ok(()),
                Err((error, _new)) => {
                    put_back(aside, pages.start, taken);
                    Err(error)
                }
            }
        }
        Err(error) => {
            put_back(aside, pages.start, taken);
            Err(error)
        }
    };
    if result.is_err() {
        set_inherited(pages, true);
        faults.unregister(pages);
    }
    faults.wake(pages);
    drop(blocked);
    result
}

/// Sets whether a child inherits the mapping of these pages.
fn set_inherited(pages: &Range<u64>, inherited: bool) {
    let advice = if inherited {
        Advice::LinuxDoFork
    } else {
        Advice::LinuxDontFork
    };
    // SAFETY: changes no contents.
    let _ = unsafe { rustix::mm::madvise(pointer(pages.start), size(pages), advice) };
}

/// Moves the first `taken` bytes of pages back to the address `to`.
fn put_back(aside: Mapping, to: u64, taken: u64) {
    if taken == 0 {
        return;
    }
    let rest = Mapping {
        at: aside.at.wrapping_byte_add(taken as usize),
        len: aside.len - taken as usize,
    };
    let mut taken = Mapping {
        at: aside.at,
        len: taken as usize,
    };
    std::mem::forget(aside);
    for _ in 0..1000 {
        // SAFETY: the pages that were there before.
        match unsafe { taken.move_to(to) } {
            Ok(()) => {
                if rest.len == 0 {
                    std::mem::forget(rest);
                }
                return;
            }
            // The kernel has no memory for a data structure. That is temporary.
            Err((_, back)) => taken = back,
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    // The program must not go on without its memory.
    std::process::abort();
}

/// Makes the pages at `at`, which are the file's from `offset` on in the mapping `vma`, private
/// again.
///
/// # Errors
/// The pages are still those of the file.
pub(super) fn move_out_of_file(
    faults: Requests<'_>,
    file: BorrowedFd<'_>,
    (at, offset): (Range<u64>, u64),
    vma: &Vma,
) -> Result<(), Errno> {
    let mut new = Mapping::populated(size(&at))?;
    faults.register(&at, FaultMode::WriteProtected)?;
    // A signal handler could wait for the pages.
    let blocked = SignalsBlocked::all();
    let result = faults
        .write_protect(&at)
        .and_then(|()| new.read(file, offset))
        .and_then(|()| new.protect_like(vma))
        // SAFETY: it has the same contents, which no thread of this process could change meanwhile.
        .and_then(|()| unsafe { new.move_to(at.start) }.map_err(|(error, _new)| error));
    if result.is_err() {
        faults.unregister(&at);
    }
    faults.wake(&at);
    drop(blocked);
    result
}
