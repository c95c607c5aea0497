//! Memory that two processes share: files of `memfd_create(2)`, mapped with `MAP_SHARED`.
//!
//! Such a file has no path. It is sent to the peer over a local socket (`SCM_RIGHTS`), and its
//! memory is freed when the last process has closed and unmapped it. The name that it is given is
//! for users who read the maps of a process. *Seals* (`fcntl(2)`, `F_ADD_SEALS`) keep every
//! process from what would harm another one: from making the file smaller, because an access
//! beyond its end ends the process with `SIGBUS`, and from writing to memory that only its owner
//! may change.

use std::ffi::CStr;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::io::{Errno, retry_on_intr};

use crate::descriptor::{self, OwnedFd};
use crate::kernel;
use crate::kernel::fs::{FallocateFlags, FsWord, MemfdFlags, Mode, OFlags, SealFlags};
use crate::kernel::mm::{MapFlags, MprotectFlags, ProtFlags};
use crate::signals;

/// A mapping of such a file. The drop unmaps it.
pub(crate) struct SharedMemory {
    /// Address of the first byte.
    at: NonNull<u8>,
    /// Size of the mapping, in bytes.
    len: usize,
}

// SAFETY: an address and a length; the users of the memory answer for what they do with it.
unsafe impl Send for SharedMemory {}
// SAFETY: as above.
unsafe impl Sync for SharedMemory {}

/// How memory is mapped that this process writes.
const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// No process may make the file smaller, or add further seals.
const NO_SHRINK: SealFlags = SealFlags::SHRINK.union(SealFlags::SEAL);

/// Which processes may write to the memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Writers {
    /// The process that has made the file, and its peers.
    All,
    /// The process that has made the file. Others can read the file and map it for reading, but
    /// neither write to it nor map it for writing, from Linux 5.1 on even if they open it again.
    Maker,
}

impl Writers {
    /// The seals to be added once the maker has mapped the file.
    fn seals(self) -> SealFlags {
        match self {
            Writers::All => NO_SHRINK,
            Writers::Maker => NO_SHRINK | SealFlags::FUTURE_WRITE,
        }
    }
}

/// Makes an empty file.
fn create_empty(name: &CStr) -> Result<OwnedFd, Errno> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // The system may be configured to refuse files that could be executed (`vm.memfd_noexec`).
    let create = |flags| descriptor::open(|| kernel::fs::memfd_create(name, flags));
    match create(flags | MemfdFlags::NOEXEC_SEAL) {
        // Linux before 6.3 does not know the flag.
        Err(Errno::INVAL) => create(flags),
        result => result,
    }
}

/// Adds the seals of a file that these processes write, and `more`.
fn seal(fd: &OwnedFd, writers: Writers, more: SealFlags) -> Result<(), Errno> {
    match kernel::fs::fcntl_add_seals(fd, writers.seals() | more) {
        // Linux before 5.1 has no seal against writers. A peer that opens the file again, to write to it, is one that
        // may write to the memory of this process in any case.
        Err(Errno::INVAL) if writers == Writers::Maker => {
            kernel::fs::fcntl_add_seals(fd, Writers::All.seals() | more)
        }
        result => result,
    }
}

/// Sets the size of a file. The error is `EFBIG` if the size is limited (`RLIMIT_FSIZE`); the
/// signal that the kernel sends then is suppressed.
fn resize(fd: &OwnedFd, len: u64) -> Result<(), Errno> {
    signals::suppressing(&[libc::SIGXFSZ], || kernel::fs::ftruncate(fd, len))
}

/// Allocates the memory of a part of a file, and grows the file if it is smaller. Memory that is
/// not allocated before its first use may be missing then, which ends the process that uses it.
fn allocate(fd: &OwnedFd, part: Range<usize>) -> Result<(), Errno> {
    let (start, len) = (part.start as u64, part.len() as u64);
    // A signal to this thread ends the call before its work is done.
    signals::suppressing(&[libc::SIGXFSZ], || {
        retry_on_intr(|| kernel::fs::fallocate(fd, FallocateFlags::empty(), start, len))
    })
}

/// A descriptor of the same file for reading only. Without `/proc` it is the descriptor itself,
/// and only the seals keep others from writing.
fn for_readers(fd: OwnedFd) -> OwnedFd {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let same = |other: &OwnedFd| {
        let files = (kernel::fs::fstat(&fd), kernel::fs::fstat(other));
        matches!(files, (Ok(a), Ok(b)) if (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino))
    };
    match descriptor::open(|| kernel::fs::open(path, flags, Mode::empty())) {
        Ok(reader) if same(&reader) => reader,
        _ => fd,
    }
}

/// Makes a file of zeros with a fixed size. Only pages that are used need memory.
pub(crate) fn file(name: &CStr, len: u64) -> Result<OwnedFd, Errno> {
    let fd = create_empty(name)?;
    resize(&fd, len)?;
    kernel::fs::fcntl_add_seals(&fd, NO_SHRINK | SealFlags::GROW)?;
    Ok(fd)
}

/// The file system of the files that are made here, as `statfs(2)` names it.
const TMPFS_MAGIC: FsWord = 0x0102_1994;

/// The size of a file of a peer, if the file is one of ordinary pages that is sealed against shrinking. Files of
/// huge pages (`MFD_HUGETLB`) can be sealed as well, but an access ends the process with `SIGBUS` while none of
/// these pages is free.
pub(crate) fn size(fd: impl AsFd) -> Result<u64, Errno> {
    let seals = kernel::fs::fcntl_get_seals(&fd)?;
    let kind = kernel::fs::fstatfs(&fd)?.f_type;
    if !seals.contains(SealFlags::SHRINK) || kind != TMPFS_MAGIC {
        return Err(Errno::INVAL);
    }
    u64::try_from(kernel::fs::fstat(&fd)?.st_size).map_err(|_| Errno::INVAL)
}

/// Checks that a file of a peer is one that [`size`] takes, and has that size.
pub(crate) fn check(fd: impl AsFd, len: u64) -> Result<(), Errno> {
    match size(fd)? == len {
        true => Ok(()),
        false => Err(Errno::INVAL),
    }
}

impl SharedMemory {
    /// Makes a file of zeros, allocates all its memory, and maps it for writing. The descriptor is
    /// the one to be sent to peers.
    pub fn create(
        name: &CStr,
        len: usize,
        writers: Writers,
    ) -> Result<(OwnedFd, SharedMemory), Errno> {
        let fd = create_empty(name)?;
        allocate(&fd, 0..len)?;
        let memory = Self::map(&fd, 0..len, READ_WRITE)?;
        seal(&fd, writers, SealFlags::GROW)?;
        let fd = match writers {
            Writers::All => fd,
            Writers::Maker => for_readers(fd),
        };
        Ok((fd, memory))
    }

    /// Maps a file that a peer has made with [`SharedMemory::create`].
    pub fn open(fd: impl AsFd, len: usize, writable: bool) -> Result<SharedMemory, Errno> {
        check(&fd, len as u64)?;
        let protection = if writable {
            READ_WRITE
        } else {
            ProtFlags::READ
        };
        Self::map(&fd, 0..len, protection)
    }

    fn map(
        fd: impl AsFd,
        part: Range<usize>,
        protection: ProtFlags,
    ) -> Result<SharedMemory, Errno> {
        let len = part.len();
        // SAFETY: a new mapping at an address that the kernel chooses.
        let at = unsafe {
            kernel::mm::mmap(
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

    /// The memory as a `T`.
    ///
    /// # Safety
    /// `T` is made of atomics and cells: all bit patterns are valid, and other processes may change
    /// them at any time. A mapping for reading only is only read.
    pub unsafe fn as_ref<T>(&self) -> &T {
        assert!(size_of::<T>() <= self.len && self.at.cast::<T>().is_aligned());
        // SAFETY: large enough and aligned, and the caller's promise.
        unsafe { self.at.cast().as_ref() }
    }

    /// The memory as a slice of as many `T` as fit.
    ///
    /// # Safety
    /// As for [`SharedMemory::as_ref`].
    pub unsafe fn as_slice<T>(&self) -> &[T] {
        // SAFETY: the file is as large as the mapping, and the caller's promise.
        unsafe { self.first_as_slice(self.len) }
    }

    /// The first `len` bytes as a slice of as many `T` as fit.
    ///
    /// # Safety
    /// As for [`SharedMemory::as_ref`], and the file has at least `len` bytes.
    #[inline]
    unsafe fn first_as_slice<T>(&self, len: usize) -> &[T] {
        debug_assert!(len <= self.len && self.at.cast::<T>().is_aligned());
        // SAFETY: a mapping begins with a page, which is aligned for any type, and the caller's
        // promise.
        unsafe { std::slice::from_raw_parts(self.at.cast().as_ptr(), len / size_of::<T>()) }
    }
}

/// Memory of this process that grows, and that only this process writes. It is mapped up to its
/// largest size from the beginning: once the file is sealed, no process can map it for writing. What is not
/// there yet cannot be accessed: valgrind reads all memory that can when a program ends, and takes minutes
/// where each word of that is a `SIGBUS`.
pub(super) struct GrowingMemory {
    /// The mapping, up to the largest size.
    memory: SharedMemory,
    /// The file, whose size changes.
    fd: OwnedFd,
    /// Size of the file, in bytes.
    len: usize,
}

impl GrowingMemory {
    /// Makes an empty file that grows up to `max_len` bytes. The descriptor is the one to be sent to
    /// peers.
    pub fn create(name: &CStr, max_len: usize) -> Result<(OwnedFd, GrowingMemory), Errno> {
        let fd = create_empty(name)?;
        let memory = SharedMemory::map(&fd, 0..max_len, ProtFlags::empty())?;
        seal(&fd, Writers::Maker, SealFlags::empty())?;
        let readers = for_readers(kernel::io::fcntl_dupfd_cloexec(&fd, 0)?.into());
        Ok((readers, GrowingMemory { memory, fd, len: 0 }))
    }

    /// Grows the memory to at least `len` bytes. New bytes are zeros.
    pub fn grow(&mut self, len: usize) -> Result<(), Errno> {
        if len <= self.len {
            return Ok(());
        }
        if len > self.memory.len {
            return Err(Errno::NOSPC);
        }
        allocate(&self.fd, self.len..len)?;
        let access = MprotectFlags::READ | MprotectFlags::WRITE;
        // SAFETY: our own mapping, whose first bytes the file has.
        unsafe { kernel::mm::mprotect(self.memory.at.as_ptr().cast(), len, access) }?;
        self.len = len;
        Ok(())
    }

    /// The memory as a slice of as many `T` as fit.
    ///
    /// # Safety
    /// As for [`SharedMemory::as_ref`].
    pub unsafe fn as_slice<T>(&self) -> &[T] {
        // SAFETY: the file has so many bytes, and the caller's promise.
        unsafe { self.memory.first_as_slice(self.len) }
    }
}

/// A mapping, for reading, of [`GrowingMemory`] of a peer.
pub(super) struct GrowingMapping {
    /// The mapping, up to the largest size.
    memory: SharedMemory,
    /// The file.
    fd: OwnedFd,
    /// Size of the file when it was last read, in bytes. The mapping must not be used beyond.
    len: AtomicUsize,
}

impl GrowingMapping {
    /// Maps a file that a peer has made with [`GrowingMemory::create`] and that `max_len`.
    pub fn open(fd: OwnedFd, max_len: usize) -> Result<GrowingMapping, Errno> {
        let memory = SharedMemory::map(&fd, 0..max_len, ProtFlags::READ)?;
        let len = AtomicUsize::new(0);
        let mapping = GrowingMapping { memory, fd, len };
        mapping.refresh()?;
        Ok(mapping)
    }

    /// Reads the size of the file.
    pub fn refresh(&self) -> Result<(), Errno> {
        let len = size(&self.fd)?;
        let len = usize::try_from(len).map_or(usize::MAX, |len| len.min(self.memory.len));
        // The file is sealed against shrinking, so the largest size that any thread has read holds.
        self.len.fetch_max(len, Ordering::Relaxed);
        Ok(())
    }

    /// The memory as a slice of as many `T` as fit the size that was last read.
    ///
    /// # Safety
    /// As for [`SharedMemory::as_ref`].
    #[inline]
    pub unsafe fn as_slice<T>(&self) -> &[T] {
        // SAFETY: the file has so many bytes, and the caller's promise.
        unsafe { self.memory.first_as_slice(self.len.load(Ordering::Relaxed)) }
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: our own mapping, and nothing refers to it any more.
        let _ = unsafe { kernel::mm::munmap(self.at.as_ptr().cast(), self.len) };
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

    /// The pages of such files come from a pool that may be empty: to map one succeeds, and the first access
    /// ends the process.
    #[test]
    fn files_of_huge_pages_are_refused() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
        let len = 1 << 30;
        let Ok(huge) = rustix::fs::memfd_create(c"libdat", flags) else {
            // A kernel without such pages: nobody has such a file.
            return;
        };
        rustix::fs::ftruncate(&huge, len).unwrap();
        rustix::fs::fcntl_add_seals(&huge, NO_SHRINK | SealFlags::GROW).unwrap();
        assert_eq!(size(&huge), Err(Errno::INVAL));
        assert!(SharedMemory::open(&huge, len as usize, false).is_err());
        assert!(GrowingMapping::open(huge.into(), len as usize).is_err());
    }

    #[test]
    fn memory_that_grows() {
        let (fd, mut a) = GrowingMemory::create(c"libdat", 1 << 20).unwrap();
        let b = GrowingMapping::open(fd, 1 << 20).unwrap();
        // SAFETY: made of atomics.
        let words = |b: &GrowingMapping| unsafe { b.as_slice::<AtomicU32>().len() };
        assert_eq!(words(&b), 0);
        a.grow(8192).unwrap();
        // SAFETY: made of atomics.
        unsafe { &a.as_slice::<AtomicU32>()[2047] }.store(7, Ordering::Relaxed);
        assert_eq!((words(&b), b.refresh(), words(&b)), (0, Ok(()), 2048));
        // SAFETY: made of atomics.
        let last = unsafe { &b.as_slice::<AtomicU32>()[2047] };
        assert_eq!(last.load(Ordering::Relaxed), 7);
        assert_eq!(a.grow((1 << 20) + 1), Err(Errno::NOSPC));
        a.grow(1 << 20).unwrap();
        assert_eq!((b.refresh(), words(&b)), (Ok(()), 1 << 18));
        // A peer cannot make the file smaller, and a larger file than agreed changes nothing.
        assert!(resize(&a.fd, 4096).is_err());
        resize(&a.fd, 1 << 21).unwrap();
        assert_eq!((b.refresh(), words(&b)), (Ok(()), 1 << 18));
        assert!(SharedMemory::map(&a.fd, 0..4096, READ_WRITE).is_err());
    }

    #[test]
    fn what_is_not_there_yet_cannot_be_accessed() {
        let name = c"libdat-what-is-not-there-yet";
        let (_fd, mut memory) = GrowingMemory::create(name, 1 << 20).unwrap();
        let accessible = || -> usize {
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            let ours = maps
                .lines()
                .filter(|line| line.contains(name.to_str().unwrap()));
            let parts = ours.filter(|line| !line.contains(" ---s "));
            let len = |line: &str| {
                let (from, to) = line.split_once(' ')?.0.split_once('-')?;
                let address = |digits| usize::from_str_radix(digits, 16).ok();
                Some(address(to)? - address(from)?)
            };
            parts.filter_map(len).sum()
        };
        assert_eq!(accessible(), 0);
        memory.grow(1 << 16).unwrap();
        assert_eq!(accessible(), 1 << 16);
        memory.grow(1 << 20).unwrap();
        assert_eq!(accessible(), 1 << 20);
    }
}
