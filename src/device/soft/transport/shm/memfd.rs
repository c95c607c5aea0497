//! Memory that two processes share: a file without a name, which goes with its last user.

use std::ffi::CStr;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use crate::signals;

/// A mapping of such a file.
pub(crate) struct SharedMemory {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: an address and a length; what is done with the memory is up to those who use it.
unsafe impl Send for SharedMemory {}
// SAFETY: as above.
unsafe impl Sync for SharedMemory {}

/// Nobody may make the file smaller: a process that touches what is no more dies of it.
const SHAPE: SealFlags = SealFlags::SHRINK.union(SealFlags::SEAL);

/// Who writes to the memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Writers {
    /// The process that has made it, and its peers.
    All,
    /// The process that has made it. Whoever gets the file can read and map it, but neither
    /// write to it nor map it to be written, not even when he opens it again.
    Maker,
}

impl Writers {
    /// What the kernel holds everybody to once the maker has mapped the file.
    fn seals(self) -> SealFlags {
        match self {
            Writers::All => SHAPE,
            Writers::Maker => SHAPE | SealFlags::FUTURE_WRITE,
        }
    }
}

/// Makes a file without a name and without contents.
fn empty(name: &CStr) -> Result<OwnedFd, Errno> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Where files without a name that could be executed are not allowed.
    match rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        // Before Linux 6.3.
        Err(Errno::INVAL) => rustix::fs::memfd_create(name, flags),
        result => result,
    }
}

/// Gives a file another size, or the error `EFBIG` if it may not be that large.
fn resize(fd: &OwnedFd, len: u64) -> Result<(), Errno> {
    signals::without(&[libc::SIGXFSZ], || rustix::fs::ftruncate(fd, len))
}

/// Gives a part of a file all its memory, and the file that size if it is smaller: what is
/// missing later, when the memory of the machine is used up, would kill who touches it.
fn fill(fd: &OwnedFd, part: Range<usize>) -> Result<(), Errno> {
    let (start, len) = (part.start as u64, part.len() as u64);
    signals::without(&[libc::SIGXFSZ], || {
        rustix::fs::fallocate(fd, FallocateFlags::empty(), start, len)
    })
}

/// The same file for those who only read it. Where there is no `/proc` it is the seals alone
/// that keep them from more.
fn for_readers(fd: OwnedFd) -> OwnedFd {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let same = |other: &OwnedFd| {
        let files = (rustix::fs::fstat(&fd), rustix::fs::fstat(other));
        matches!(files, (Ok(a), Ok(b)) if (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino))
    };
    match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(reader) if same(&reader) => reader,
        _ => fd,
    }
}

/// Makes a file of zeros whose size is fixed. Only what is touched uses memory.
pub(crate) fn file(name: &CStr, len: u64) -> Result<OwnedFd, Errno> {
    let fd = empty(name)?;
    resize(&fd, len)?;
    rustix::fs::fcntl_add_seals(&fd, SHAPE | SealFlags::GROW)?;
    Ok(fd)
}

/// The size of a file of a peer, if it is one as they are made here.
pub(crate) fn size(fd: impl AsFd) -> Result<u64, Errno> {
    let seals = rustix::fs::fcntl_get_seals(&fd)?;
    if !seals.contains(SealFlags::SHRINK) {
        return Err(Errno::INVAL);
    }
    u64::try_from(rustix::fs::fstat(&fd)?.st_size).map_err(|_| Errno::INVAL)
}

/// Whether a file of a peer is one as [`file()`] makes them.
pub(crate) fn check(fd: impl AsFd, len: u64) -> Result<(), Errno> {
    match size(fd)? == len {
        true => Ok(()),
        false => Err(Errno::INVAL),
    }
}

impl SharedMemory {
    /// Makes a file of zeros, with all its memory at once, and maps it to be written. The
    /// descriptor is for peers. The name is for those who look at the maps of the process.
    pub fn create(
        name: &CStr,
        len: usize,
        writers: Writers,
    ) -> Result<(OwnedFd, SharedMemory), Errno> {
        let fd = empty(name)?;
        fill(&fd, 0..len)?;
        let memory = Self::map(&fd, 0..len, true)?;
        rustix::fs::fcntl_add_seals(&fd, writers.seals() | SealFlags::GROW)?;
        let fd = match writers {
            Writers::All => fd,
            Writers::Maker => for_readers(fd),
        };
        Ok((fd, memory))
    }

    /// Maps a file that a peer has made, if it is one as [`SharedMemory::create`] makes them.
    pub fn open(fd: impl AsFd, len: usize, writable: bool) -> Result<SharedMemory, Errno> {
        check(&fd, len as u64)?;
        Self::map(&fd, 0..len, writable)
    }

    fn map(fd: impl AsFd, part: Range<usize>, writable: bool) -> Result<SharedMemory, Errno> {
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
        Ok(SharedMemory { at, len })
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
    /// As [`SharedMemory::as_ref`].
    pub unsafe fn as_slice<T>(&self) -> &[T] {
        // SAFETY: all of it is there, and the caller's promise.
        unsafe { self.first_as_slice(self.len) }
    }

    /// The same for as many as fit the first `len` bytes.
    ///
    /// # Safety
    /// Likewise, and the file is as large as that.
    #[inline]
    unsafe fn first_as_slice<T>(&self, len: usize) -> &[T] {
        debug_assert!(len <= self.len && self.at.cast::<T>().is_aligned());
        // SAFETY: a mapping begins with a page, which is aligned for whatever is in it, and the
        // caller's promise.
        unsafe { std::slice::from_raw_parts(self.at.cast().as_ptr(), len / size_of::<T>()) }
    }
}

/// Memory of ours that grows, and that only we write to. All of its address space is there from
/// the beginning: later nobody can map the file to be written, not even we.
pub(super) struct Growing {
    memory: SharedMemory,
    /// To be given another size.
    fd: OwnedFd,
    /// Bytes that there are.
    len: usize,
}

impl Growing {
    /// Makes a file without contents, which grows up to `most` bytes. The descriptor is for peers.
    pub fn create(name: &CStr, most: usize) -> Result<(OwnedFd, Growing), Errno> {
        let fd = empty(name)?;
        let memory = SharedMemory::map(&fd, 0..most, true)?;
        rustix::fs::fcntl_add_seals(&fd, Writers::Maker.seals())?;
        let readers = for_readers(rustix::io::fcntl_dupfd_cloexec(&fd, 0)?);
        Ok((readers, Growing { memory, fd, len: 0 }))
    }

    /// Sees to it that there are so many bytes, which were zeros when they came.
    pub fn grow(&mut self, len: usize) -> Result<(), Errno> {
        if len <= self.len {
            return Ok(());
        }
        if len > self.memory.len {
            return Err(Errno::NOSPC);
        }
        fill(&self.fd, self.len..len)?;
        self.len = len;
        Ok(())
    }

    /// As [`SharedMemory::as_slice`], of what there is.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn as_slice<T>(&self) -> &[T] {
        // SAFETY: so many bytes are there, and the caller's promise.
        unsafe { self.memory.first_as_slice(self.len) }
    }
}

/// Such memory of a peer, to be read.
pub(super) struct Grown {
    memory: SharedMemory,
    fd: OwnedFd,
    /// Bytes that were there when we looked last: more than that must not be touched.
    len: AtomicUsize,
}

impl Grown {
    /// Maps a file that a peer has made with [`Growing::create`], all that it may become.
    pub fn open(fd: OwnedFd, most: usize) -> Result<Grown, Errno> {
        let memory = SharedMemory::map(&fd, 0..most, false)?;
        let len = AtomicUsize::new(0);
        let grown = Grown { memory, fd, len };
        grown.look()?;
        Ok(grown)
    }

    /// Looks how large it is by now.
    pub fn look(&self) -> Result<(), Errno> {
        let len = size(&self.fd)?;
        let len = usize::try_from(len).map_or(usize::MAX, |len| len.min(self.memory.len));
        // The file does not shrink, so what anybody has seen stays true.
        self.len.fetch_max(len, Ordering::Relaxed);
        Ok(())
    }

    /// As [`SharedMemory::as_slice`], of what there was at the last look.
    ///
    /// # Safety
    /// As there.
    #[inline]
    pub unsafe fn as_slice<T>(&self) -> &[T] {
        // SAFETY: so many bytes are there, and the caller's promise.
        unsafe { self.memory.first_as_slice(self.len.load(Ordering::Relaxed)) }
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: our own mapping, and nothing refers to it any more.
        let _ = unsafe { rustix::mm::munmap(self.at.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn two_mappings_are_one_memory_of_a_fixed_size() {
        for writers in [Writers::All, Writers::Maker] {
            let (fd, a) = SharedMemory::create(c"libdat", 8192, writers).unwrap();
            let b = SharedMemory::open(&fd, 8192, false).unwrap();
            // SAFETY: atomics in both, and only one is written.
            let (a, b) = unsafe { (a.as_slice::<AtomicU32>(), b.as_slice::<AtomicU32>()) };
            a[2047].store(7, Ordering::Relaxed);
            assert_eq!((b[2047].load(Ordering::Relaxed), b.len()), (7, 2048));
            assert!(rustix::fs::ftruncate(&fd, 0).is_err());
            assert!(SharedMemory::open(&fd, 4096, false).is_err());
            let writable = SharedMemory::open(&fd, 8192, true).is_ok();
            assert_eq!(writable, writers == Writers::All);
        }
        let unsealed = rustix::fs::memfd_create(c"libdat", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&unsealed, 8192).unwrap();
        assert!(SharedMemory::open(&unsealed, 8192, true).is_err());
    }

    #[test]
    fn memory_that_grows() {
        let (fd, mut a) = Growing::create(c"libdat", 1 << 20).unwrap();
        let b = Grown::open(fd, 1 << 20).unwrap();
        // SAFETY: made of atomics.
        let words = |b: &Grown| unsafe { b.as_slice::<AtomicU32>().len() };
        assert_eq!(words(&b), 0);
        a.grow(8192).unwrap();
        // SAFETY: made of atomics.
        unsafe { &a.as_slice::<AtomicU32>()[2047] }.store(7, Ordering::Relaxed);
        assert_eq!((words(&b), b.look(), words(&b)), (0, Ok(()), 2048));
        // SAFETY: made of atomics.
        let last = unsafe { &b.as_slice::<AtomicU32>()[2047] };
        assert_eq!(last.load(Ordering::Relaxed), 7);
        assert_eq!(a.grow((1 << 20) + 1), Err(Errno::NOSPC));
        a.grow(1 << 20).unwrap();
        assert_eq!((b.look(), words(&b)), (Ok(()), 1 << 18));
        // A peer does not make it smaller, whatever it does, and a larger one changes nothing.
        assert!(resize(&a.fd, 4096).is_err());
        resize(&a.fd, 1 << 21).unwrap();
        assert_eq!((b.look(), words(&b)), (Ok(()), 1 << 18));
        assert!(SharedMemory::map(&a.fd, 0..4096, true).is_err());
    }
}
