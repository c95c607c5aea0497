//! Pages of the program from its private memory to the file, and back, while other threads use
//! them.
//!
//! Between the first and the last step here the program's memory is missing or protected, and
//! whoever needs it waits for us, so we must not wait for anybody: no lock, no allocation, no
//! signal handler.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, MremapFlags, ProtFlags};

use super::proc_maps::Vma;
use super::userfault::{Faults, Mode};
use crate::signals::Quiet;

/// Bytes that move at once: for so long others wait, and so much memory is needed twice.
pub(crate) const STEP: u64 = 4 << 20;

/// Memory of ours, which may take the place of the program's.
pub(super) struct Space {
    at: *mut libc::c_void,
    len: usize,
}

/// Bytes of a range.
pub(crate) fn size(range: &Range<u64>) -> usize {
    (range.end - range.start) as usize
}

fn pointer(at: u64) -> *mut libc::c_void {
    std::ptr::with_exposed_provenance_mut(at as usize)
}

impl Space {
    /// Private memory, all of it there.
    pub fn private(len: usize) -> Result<Space, Errno> {
        let space = Space::reserve(len)?;
        space.advise(Advice::LinuxPopulateWrite)?;
        Ok(space)
    }

    /// The same, with nothing there yet.
    fn reserve(len: usize) -> Result<Space, Errno> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let null = std::ptr::null_mut();
        // SAFETY: a new mapping at an address that the kernel chooses.
        let at = unsafe { rustix::mm::mmap_anonymous(null, len, protection, MapFlags::PRIVATE) }?;
        Ok(Space { at, len })
    }

    /// A part of the file, all of it there. A child that is made behind our back (without the
    /// handlers of `fork`) shall not share it, but miss it.
    fn of_file(file: BorrowedFd<'_>, part: &Range<u64>) -> Result<Space, Errno> {
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
        let space = Space {
            at,
            len: size(part),
        };
        space.advise(Advice::LinuxDontFork)?;
        space.advise(Advice::LinuxPopulateWrite)?;
        Ok(space)
    }

    fn advise(&self, advice: Advice) -> Result<(), Errno> {
        // SAFETY: our own mapping.
        unsafe { rustix::mm::madvise(self.at, self.len, advice) }
    }

    fn range(&self) -> Range<u64> {
        let start = self.at.expose_provenance() as u64;
        start..start + self.len as u64
    }

    /// Fills it with what the file has from `offset` on.
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

    /// Allows what a mapping of the program does.
    pub fn permit(&self, like: &Vma) -> Result<(), Errno> {
        let mut protection = MprotectFlags::empty();
        protection.set(MprotectFlags::READ, like.read);
        protection.set(MprotectFlags::WRITE, like.write);
        protection.set(MprotectFlags::EXEC, like.execute);
        // SAFETY: our own mapping.
        unsafe { rustix::mm::mprotect(self.at, self.len, protection) }
    }

    /// Takes the place of what is at `to`, at one stroke.
    ///
    /// # Safety
    /// The program finds there what it should.
    pub unsafe fn place(self, to: u64) -> Result<(), (Errno, Space)> {
        let flags = MremapFlags::MAYMOVE;
        // SAFETY: our own mapping moves; what was there before is the caller's matter.
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

impl Drop for Space {
    fn drop(&mut self) {
        // SAFETY: our own mapping, and nothing refers to it any more.
        let _ = unsafe { rustix::mm::munmap(self.at, self.len) };
    }
}

/// Moves private pages, which lie in one mapping, into the file.
///
/// # Errors
/// They are where they were.
pub(super) fn into_file(
    faults: &Faults,
    file: BorrowedFd<'_>,
    pages: &Range<u64>,
) -> Result<(), Errno> {
    let aside = Space::reserve(size(pages))?;
    let new = Space::of_file(file, pages)?;
    faults.watch(&aside.range(), Mode::Missing)?;
    faults.watch(pages, Mode::Missing)?;
    // A child that is made behind our back at this moment would have zeros there.
    inherit(pages, false);
    // A handler could touch what waits for us.
    let quiet = Quiet::begin();
    // SAFETY: whoever touches them waits until they are back, or in the file.
    let (taken, result) = unsafe { faults.take(pages, aside.range().start) };
    let result = match result {
        Ok(()) => {
            // SAFETY: two mappings of ours of that size.
            unsafe { std::ptr::copy_nonoverlapping(aside.at.cast::<u8>(), new.at.cast(), new.len) };
            // SAFETY: with the same bytes in it.
            match unsafe { new.place(pages.start) } {
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
        inherit(pages, true);
        faults.release(pages);
    }
    faults.wake(pages);
    drop(quiet);
    result
}

/// Whether children have the pages that are there now.
fn inherit(pages: &Range<u64>, yes: bool) {
    let advice = if yes {
        Advice::LinuxDoFork
    } else {
        Advice::LinuxDontFork
    };
    // SAFETY: changes no contents.
    let _ = unsafe { rustix::mm::madvise(pointer(pages.start), size(pages), advice) };
}

/// The pages that were taken return.
fn put_back(aside: Space, to: u64, taken: u64) {
    if taken == 0 {
        return;
    }
    let rest = Space {
        at: aside.at.wrapping_byte_add(taken as usize),
        len: aside.len - taken as usize,
    };
    let mut taken = Space {
        at: aside.at,
        len: taken as usize,
    };
    std::mem::forget(aside);
    for _ in 0..1000 {
        // SAFETY: the pages that were there.
        match unsafe { taken.place(to) } {
            Ok(()) => {
                if rest.len == 0 {
                    std::mem::forget(rest);
                }
                return;
            }
            // The kernel has no memory for a few words; that passes.
            Err((_, back)) => taken = back,
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    // The program's memory is not where it belongs: it must not go on without.
    std::process::abort();
}

/// Makes pages private again that are mapped at `at`, of a mapping like `vma`, with what the
/// file has from `offset` on.
///
/// # Errors
/// They are still those of the file.
pub(super) fn out_of_file(
    faults: &Faults,
    file: BorrowedFd<'_>,
    (at, offset): (Range<u64>, u64),
    vma: &Vma,
) -> Result<(), Errno> {
    let mut new = Space::private(size(&at))?;
    faults.watch(&at, Mode::Protected)?;
    // A handler could touch what waits for us.
    let quiet = Quiet::begin();
    let result = faults
        .protect(&at)
        .and_then(|()| new.read(file, offset))
        .and_then(|()| new.permit(vma))
        // SAFETY: with the same bytes in it, which nobody could change.
        .and_then(|()| unsafe { new.place(at.start) }.map_err(|(error, _new)| error));
    if result.is_err() {
        faults.release(&at);
    }
    faults.wake(&at);
    drop(quiet);
    result
}
