//! Memory that two processes share: a file without a name, which goes with its last user.

use std::ffi::CStr;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

/// A mapping of such a file.
pub(super) struct Memory {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: an address and a length; what is done with the memory is up to those who use it.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

/// Nobody may make the file smaller: a process that touches what is no more dies of it.
const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

/// Makes a file of zeros whose size is fixed. Only what is touched uses memory.
pub(super) fn file(name: &CStr, len: u64) -> Result<OwnedFd, Errno> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create(name, flags)?;
    rustix::fs::ftruncate(&fd, len)?;
    rustix::fs::fcntl_add_seals(&fd, SEALS)?;
    Ok(fd)
}

/// Whether a file of a peer is one as [`file`] makes them.
pub(super) fn check(fd: impl AsFd, len: u64) -> Result<(), Errno> {
    let seals = rustix::fs::fcntl_get_seals(&fd)?;
    if !seals.contains(SealFlags::SHRINK) || rustix::fs::fstat(&fd)?.st_size != len as i64 {
        return Err(Errno::INVAL);
    }
    Ok(())
}

impl Memory {
    /// Makes a file of zeros. With `present` it has all its memory at once: what is missing
    /// later, when the memory of the machine is used up, would kill who touches it.
    /// The name is for those who look at the maps of the process.
    pub fn create(name: &CStr, len: usize, present: bool) -> Result<(OwnedFd, Memory), Errno> {
        let fd = file(name, len as u64)?;
        if present {
            rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, len as u64)?;
        }
        let memory = Self::map(&fd, 0..len, true)?;
        Ok((fd, memory))
    }

    /// Maps a file that a peer has made, if it is one as [`Memory::create`] makes them.
    pub fn open(fd: impl AsFd, len: usize, writable: bool) -> Result<Memory, Errno> {
        Self::open_part(fd, len, 0..len, writable)
    }

    /// Maps whole pages of such a file.
    pub fn open_part(
        fd: impl AsFd,
        len: usize,
        part: Range<usize>,
        writable: bool,
    ) -> Result<Memory, Errno> {
        check(&fd, len as u64)?;
        Self::map(&fd, part, writable)
    }

    fn map(fd: impl AsFd, part: Range<usize>, writable: bool) -> Result<Memory, Errno> {
        let len = part.len();
        let mut protection = ProtFlags::READ;
        protection.set(ProtFlags::WRITE, writable);
        // SAFETY: a new mapping at an address that the kernel chooses.
        let at = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                len,
                protection,
                MapFlags::SHARED | MapFlags::NORESERVE,
                fd,
                part.start as u64,
            )
        }?;
        let at = NonNull::new(at.cast()).ok_or(Errno::INVAL)?;
        Ok(Memory { at, len })
    }

    /// The memory as what it is used for.
    ///
    /// # Safety
    /// All bit patterns, and other processes that change them at any time, are fine for `T`,
    /// which is made of atomics and cells; a writable type needs a writable mapping.
    pub unsafe fn as_ref<T>(&self) -> &T {
        assert!(size_of::<T>() <= self.len && self.at.cast::<T>().is_aligned());
        // SAFETY: large enough and aligned, and the caller's promise.
        unsafe { self.at.cast().as_ref() }
    }

    /// The same for as many `T` as fit.
    ///
    /// # Safety
    /// As [`Memory::as_ref`].
    pub unsafe fn as_slice<T>(&self) -> &[T] {
        assert!(self.at.cast::<T>().is_aligned());
        let count = self.len / size_of::<T>();
        // SAFETY: large enough and aligned, and the caller's promise.
        unsafe { std::slice::from_raw_parts(self.at.cast().as_ptr(), count) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: our own mapping, and nothing refers to it any more.
        let _ = unsafe { rustix::mm::munmap(self.at.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn two_mappings_are_one_memory_of_a_fixed_size() {
        let (fd, a) = Memory::create(c"libdat", 8192, true).unwrap();
        let b = Memory::open(&fd, 8192, false).unwrap();
        // SAFETY: atomics in both, and only one is written.
        let (a, b) = unsafe { (a.as_slice::<AtomicU32>(), b.as_slice::<AtomicU32>()) };
        a[2047].store(7, Ordering::Relaxed);
        assert_eq!((b[2047].load(Ordering::Relaxed), b.len()), (7, 2048));
        assert!(rustix::fs::ftruncate(&fd, 0).is_err());
        assert!(Memory::open(&fd, 4096, false).is_err());
        let unsealed = rustix::fs::memfd_create(c"libdat", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&unsealed, 8192).unwrap();
        assert!(Memory::open(&unsealed, 8192, true).is_err());
    }
}
