//! Copies from and to the memory of another process by the kernel (cross-memory attach).
//!
//! By `process_vm_readv(2)` and `process_vm_writev(2)`, which obey the protection of the pages. Short reads
//! are from the file of the process ([`ProcessFile`]).

#[cfg(test)]
mod tests;

use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;

use rustix::io::Errno;
use rustix::process::Pid;

use super::process_file::ProcessFile;
use crate::device::soft::mem::copy::{self, Cursor};
use crate::device::soft::mem::ranges::{Ranges, iovec};
use crate::guarded::{self, CopyFault};
use crate::kernel;
use crate::marked_call;

/// So many bytes at the end of a write become visible after all others.
const TAIL: u64 = copy::TAIL as u64;
/// The most local segments in one system call, not counting the tail.
const MAX_SEGMENTS: usize = 64;

/// Why a copy failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CopyError {
    /// The process has exited, or the kernel does not permit the access any longer.
    PeerExited,
    /// A part of the local memory cannot be accessed.
    Local,
    /// A part of the peer's memory cannot be accessed.
    Remote,
    /// A part of the peer's memory moves at the moment.
    Moving,
}

impl CopyError {
    /// The error of a copy in that direction.
    pub fn from_fault(fault: CopyFault, direction: Direction) -> CopyError {
        match (fault, direction) {
            (CopyFault::Source, Direction::Write) | (CopyFault::Target, Direction::Read) => {
                CopyError::Local
            }
            (CopyFault::Source, Direction::Read) | (CopyFault::Target, Direction::Write) => {
                CopyError::Remote
            }
        }
    }
}

/// Whether a copy is to the memory of the peer or from there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    /// To the peer.
    Write,
    /// From the peer.
    Read,
}

/// The memory of another process.
#[derive(Debug)]
pub(crate) struct RemoteProcess {
    pid: Pid,
    /// The same as a file, if it could be opened.
    file: Option<ProcessFile>,
    /// Where the kernel marks that the memory is to become that of another program, once that is known.
    mark: Option<Mark>,
}

/// A word in memory that stays mapped as long as the process is used, and the bit of the mark.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark(NonNull<AtomicU32>, u32);

// SAFETY: an atomic, which any thread may read.
unsafe impl Send for Mark {}
// SAFETY: as above.
unsafe impl Sync for Mark {}

impl Mark {
    /// # Safety
    /// The word stays mapped as long as the mark is used.
    pub unsafe fn new(word: &AtomicU32, bit: u32) -> Mark {
        Mark(NonNull::from(word), bit)
    }
}

impl RemoteProcess {
    /// The memory of the process with that identifier.
    pub fn new(pid: Pid) -> RemoteProcess {
        RemoteProcess {
            pid,
            file: None,
            mark: None,
        }
    }

    /// From now on nothing is copied once there is this mark.
    pub fn watch(&mut self, mark: Mark) {
        marked_call::prepare();
        self.mark = Some(mark);
    }

    /// Opens the file of the process, which has these bytes at `addr`, and no other process has them.
    pub fn open_file<const N: usize>(&mut self, addr: u64, bytes: &[u8; N]) {
        self.file = ProcessFile::open(self.pid, addr, bytes);
    }

    /// Whether the file of the process is open.
    pub fn has_file(&self) -> bool {
        self.file.is_some()
    }

    /// Whether the process has exited, or executes another program, as far as its file tells.
    pub fn is_over(&self) -> bool {
        self.file.as_ref().is_some_and(ProcessFile::is_over)
    }

    /// The process identifier.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Reads `N` bytes at that address of the process.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn read<const N: usize>(&self, addr: u64) -> Result<[u8; N], Errno> {
        let mut found = [0u8; N];
        let (local, remote) = (iovec(found.as_mut_ptr(), N), iovec(addr as *mut u8, N));
        // SAFETY: the bytes may be written.
        let n = unsafe { self.process_vm(Direction::Read, &[local], &[remote]) }?;
        if n == N { Ok(found) } else { Err(Errno::FAULT) }
    }

    /// Copies by one system call, and returns the number of bytes.
    ///
    /// # Safety
    /// The local ranges are memory of ours that may be changed, if this is a read.
    unsafe fn process_vm(
        &self,
        direction: Direction,
        local: &[libc::iovec],
        remote: &[libc::iovec],
    ) -> Result<usize, Errno> {
        let write = direction == Direction::Write;
        match self.mark {
            Some(Mark(word, bit)) => {
                // SAFETY: mapped, as who has made the mark has promised.
                let word = unsafe { word.as_ref() };
                // SAFETY: the caller's promise.
                unsafe { kernel::process_vm_unless((word, bit), write, self.pid, local, remote) }
            }
            // SAFETY: the caller's promise.
            None => unsafe { kernel::process_vm(write, self.pid, local, remote) },
        }
    }

    /// Copies `len` bytes; with `is_end` the last bytes of a write become visible last.
    ///
    /// # Safety
    /// The local segments are registered memory of at least that length, which may be read for
    /// a write and written for a read.
    #[inline]
    pub unsafe fn copy(
        &self,
        direction: Direction,
        mut local: Cursor<'_>,
        mut remote: u64,
        len: u64,
        is_end: bool,
    ) -> Result<(), CopyError> {
        let mut left = len;
        if len > 0
            && let Some(only) = local.whole(len)
        {
            // SAFETY: the caller's promise.
            match unsafe { self.copy_one(direction, only, remote, len, is_end) } {
                Ok(n) if n == len => return Ok(()),
                Ok(n) => {
                    local.advance(n);
                    remote = remote.wrapping_add(n);
                    left -= n;
                }
                // The call is made again, and says what is wrong.
                Err(_) => {}
            }
        }
        // SAFETY: the caller's promise.
        unsafe { self.copy_rest(direction, local, remote, left, is_end) }
    }

    /// Copies `len` bytes from or to one segment by one system call; the last bytes of a write become visible
    /// last. False if not all bytes were copied.
    ///
    /// # Safety
    /// As [`RemoteProcess::copy`].
    #[inline(always)]
    pub unsafe fn copy_at_once(
        &self,
        direction: Direction,
        local: *mut u8,
        remote: u64,
        len: u64,
    ) -> bool {
        // SAFETY: the caller's promise.
        unsafe {
            match &self.file {
                Some(file) if direction == Direction::Read && ProcessFile::is_faster(len) => {
                    file.read(local, remote, len as usize) == Ok(len as usize)
                }
                _ => self.copy_one(direction, local, remote, len, true) == Ok(len),
            }
        }
    }

    /// [`RemoteProcess::copy`] of one segment, by one system call. Returns the number of bytes.
    ///
    /// # Errors
    /// The error of the kernel.
    ///
    /// # Safety
    /// As [`RemoteProcess::copy`].
    #[inline]
    unsafe fn copy_one(
        &self,
        direction: Direction,
        local: *mut u8,
        remote: u64,
        len: u64,
        is_end: bool,
    ) -> Result<u64, Errno> {
        let target = iovec(remote as *mut u8, len as usize);
        let bulk = len.saturating_sub(TAIL) as usize;
        let tail = local.wrapping_add(bulk);
        let segments = if direction == Direction::Write && is_end && bulk > 0 {
            &[iovec(local, bulk), iovec(tail, TAIL as usize)][..]
        } else {
            &[iovec(local, len as usize)][..]
        };
        // SAFETY: the caller's promise.
        unsafe { self.process_vm(direction, segments, &[target]) }.map(|n| n as u64)
    }

    /// [`RemoteProcess::copy`] of any segments, by as many system calls as it takes.
    ///
    /// # Errors
    /// As [`RemoteProcess::copy`].
    ///
    /// # Safety
    /// As [`RemoteProcess::copy`].
    #[inline(never)]
    unsafe fn copy_rest(
        &self,
        direction: Direction,
        mut local: Cursor<'_>,
        mut remote: u64,
        mut left: u64,
        is_end: bool,
    ) -> Result<(), CopyError> {
        while left > 0 {
            let mut segments = Ranges::<{ MAX_SEGMENTS + 1 }>::new();
            // The kernel copies one range after the other.
            let tail = match direction {
                Direction::Write if is_end => TAIL,
                _ => 0,
            };
            let bytes = segments.push_segments(local, left, tail);
            let segments = segments.all();
            let target = iovec(remote as *mut u8, bytes as usize);
            // SAFETY: the caller's promise.
            let n = match unsafe { self.process_vm(direction, segments, &[target]) } {
                Ok(n) if n > 0 => n as u64,
                Err(Errno::SRCH | Errno::PERM) => return Err(CopyError::PeerExited),
                _ => return Err(self.blame(direction, local, remote)),
            };
            local.advance(n);
            remote = remote.wrapping_add(n);
            left -= n;
        }
        Ok(())
    }

    /// Makes the writes by one system call, and returns how many bytes of them are made. The last bytes
    /// of each become visible last.
    ///
    /// # Errors
    /// The error of the kernel.
    ///
    /// # Safety
    /// The local segments are registered memory, which may be read.
    pub unsafe fn write_all(&self, writes: &WriteBatch) -> Result<u64, Errno> {
        let (local, remote) = (writes.local.all(), writes.remote.all());
        // SAFETY: the caller's promise.
        let n = unsafe { self.process_vm(Direction::Write, local, remote) }?;
        Ok(n as u64)
    }

    /// Which memory the first byte of a copy that has failed could not be copied from or to: the
    /// kernel copies all bytes before the first one that it cannot access, and its error is the
    /// same for both.
    #[cold]
    fn blame(&self, direction: Direction, mut local: Cursor<'_>, remote: u64) -> CopyError {
        let is_local = match (direction, local.take(1)) {
            (Direction::Write, Some((at, _))) => guarded::is_readable(at, 1).is_err(),
            _ => self.read::<1>(remote).is_ok(),
        };
        if is_local {
            CopyError::Local
        } else {
            CopyError::Remote
        }
    }
}

/// Writes to the memory of another process that one system call makes.
pub(crate) struct WriteBatch {
    local: Ranges<{ 2 * MAX_SEGMENTS }>,
    remote: Ranges<MAX_SEGMENTS>,
}

impl WriteBatch {
    /// No writes.
    #[inline]
    pub fn new() -> WriteBatch {
        WriteBatch {
            local: Ranges::new(),
            remote: Ranges::new(),
        }
    }

    /// Adds a write of `len` bytes. False if there is no room for it.
    #[inline]
    pub fn push(&mut self, local: Cursor<'_>, remote: u64, len: u64) -> bool {
        if self.remote.count() == MAX_SEGMENTS {
            return false;
        }
        let before = self.local.count();
        if self.local.push_segments(local, len, TAIL) < len {
            self.local.truncate(before);
            return false;
        }
        // What the kernel does for a range of the peer takes longer than the copy of a short one.
        self.remote.push_adjoining(remote as *mut u8, len as usize);
        true
    }
}
