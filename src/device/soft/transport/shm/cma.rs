//! Copies from and to the memory of another process by the kernel (cross-memory attach).
//!
//! By `process_vm_readv(2)` and `process_vm_writev(2)`, which obey the protection of the pages. Short reads
//! are from the file of the process ([`ProcessFile`]).

use rustix::io::Errno;
use rustix::process::Pid;

use super::process_file::ProcessFile;
use crate::device::soft::mem::copy::Cursor;
use crate::device::soft::mem::ranges::{Ranges, iovec};
use crate::guarded::{self, CopyFault};
use crate::kernel;

/// So many bytes at the end of a write become visible after all others.
const TAIL: u64 = 16;
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
}

impl RemoteProcess {
    /// The memory of the process with that identifier.
    pub fn new(pid: Pid) -> RemoteProcess {
        RemoteProcess { pid, file: None }
    }

    /// Opens the file of the process, which has these bytes at `addr`, and no other process has them.
    pub fn open_file<const N: usize>(&mut self, addr: u64, bytes: &[u8; N]) {
        self.file = ProcessFile::open(self.pid, addr, bytes);
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
        // SAFETY: the caller's promise.
        unsafe { kernel::process_vm(write, self.pid, local, remote) }
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
            if direction == Direction::Read
                && ProcessFile::is_faster(len)
                && let Some(file) = &self.file
            {
                // SAFETY: the caller's promise.
                match unsafe { file.read(only, remote, len as usize) } {
                    Ok(n) if n as u64 == len => return Ok(()),
                    Ok(0) => return Err(CopyError::PeerExited),
                    // The other call says what is wrong.
                    _ => {}
                }
            }
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
        self.remote.push(remote as *mut u8, len as usize);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Sge;
    use crate::device::soft::mem::copy::tests::cut;

    /// This process, as one whose file cannot be opened, and with its file.
    fn own() -> [RemoteProcess; 2] {
        // Which memory is not there is asked by an access to ours.
        guarded::install_handlers();
        let number = Box::new(0x5eed_u64);
        let [process, mut with_file] =
            [(); 2].map(|()| RemoteProcess::new(rustix::process::getpid()));
        let at = std::ptr::from_ref(&*number).expose_provenance() as u64;
        assert_eq!(process.read(at), Ok(number.to_ne_bytes()));
        assert_eq!(process.read::<8>(8), Err(Errno::FAULT));
        with_file.open_file(at, &number.to_ne_bytes());
        assert!(with_file.file.is_some());
        [process, with_file]
    }

    #[test]
    fn every_length_in_segments_of_any_shape() {
        let own = own();
        for lens in [
            &[1][..],
            &[15, 1],
            &[16],
            &[17],
            &[0, 40, 0],
            &[4096],
            &[4097],
            &[9000],
            &[3; 200],
            &[1, 5000, 16],
        ] {
            for process in &own {
                copies(process, lens);
            }
        }
    }

    /// Writes segments of these lengths, and reads them back.
    fn copies(process: &RemoteProcess, lens: &[usize]) {
        let len = lens.iter().sum::<usize>();
        let mut source: Vec<u8> = (0..len).map(|i| (i * 31 + 7) as u8).collect();
        let mut target = vec![0u8; len];
        let remote = target.as_mut_ptr() as u64;
        let mut back = vec![0u8; len];
        let (from, to) = (cut(&mut source, lens), cut(&mut back, lens));
        let (from, to) = (Cursor::new(&from), Cursor::new(&to));
        let len = len as u64;
        // SAFETY: three vectors of that length.
        unsafe {
            process
                .copy(Direction::Write, from, remote, len, true)
                .unwrap();
            process
                .copy(Direction::Read, to, remote, len, true)
                .unwrap();
        }
        assert_eq!((target, back), (source.clone(), source));
    }

    /// Writes are made one after the other, up to the first that cannot be made.
    #[test]
    fn a_batch_of_writes() {
        let [process, _] = own();
        let mut source: Vec<u8> = (0..200).map(|i| (i * 31 + 7) as u8).collect();
        let mut target = [0u8; 4096];
        let mut batch = WriteBatch::new();
        let sges = cut(&mut source, &[200]);
        let begin = target.as_mut_ptr() as u64;
        let at = |n: usize| begin + 40 * n as u64;
        for n in 0..MAX_SEGMENTS {
            assert!(batch.push(Cursor::at(&sges, n as u64), at(n), 40), "{n}");
        }
        assert!(!batch.push(Cursor::new(&sges), at(0), 40));
        // SAFETY: the writes are inside the two vectors.
        let written = unsafe { process.write_all(&batch) };
        assert_eq!(written, Ok(40 * MAX_SEGMENTS as u64));
        for (n, write) in target.chunks(40).take(MAX_SEGMENTS).enumerate() {
            assert_eq!(write, &source[n..n + 40], "{n}");
        }
        assert!(target[40 * MAX_SEGMENTS..].iter().all(|byte| *byte == 0));
        // The second of these cannot be made.
        target.fill(0);
        let mut batch = WriteBatch::new();
        for remote in [at(0), 8, at(1)] {
            assert!(batch.push(Cursor::new(&sges), remote, 40));
        }
        // SAFETY: as above.
        assert_eq!(unsafe { process.write_all(&batch) }, Ok(40));
        assert_eq!(target[..40], source[..40]);
        assert!(target[40..].iter().all(|byte| *byte == 0));
        // No room for the segments of one more.
        let mut many = vec![1u8; 2 * MAX_SEGMENTS];
        let sges = cut(&mut many, &[1; 2 * MAX_SEGMENTS]);
        let mut batch = WriteBatch::new();
        assert!(batch.push(Cursor::new(&sges), at(0), 100));
        assert!(!batch.push(Cursor::new(&sges), at(0), 100));
        assert!(batch.push(Cursor::new(&sges), at(0), 20));
        // SAFETY: as above.
        assert_eq!(unsafe { process.write_all(&batch) }, Ok(120));
    }

    #[test]
    fn memory_that_is_not_there() {
        own().iter().for_each(is_told);
    }

    /// Which memory is not there is told.
    fn is_told(process: &RemoteProcess) {
        let mut bytes = [0u8; 8];
        let there = bytes.as_mut_ptr() as u64;
        let sges = cut(&mut bytes, &[8]);
        let nowhere = [Sge {
            addr: 8,
            len: 8,
            lkey: 0,
        }];
        for direction in [Direction::Read, Direction::Write] {
            // SAFETY: eight bytes, or none.
            unsafe {
                let copied = process.copy(direction, Cursor::new(&sges), 8, 8, true);
                assert_eq!(copied, Err(CopyError::Remote));
                let copied = process.copy(direction, Cursor::new(&nowhere), there, 8, true);
                assert_eq!(copied, Err(CopyError::Local));
            }
        }
    }

    /// What is in front of the first page that is not there is copied, and the side is named.
    #[test]
    fn a_copy_of_one_segment_ends_at_a_page_that_is_not_there() {
        own().iter().for_each(ends_at_a_page);
    }

    fn ends_at_a_page(process: &RemoteProcess) {
        const PAGE: usize = 4096;
        // SAFETY: a new mapping.
        let at = unsafe {
            let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            libc::mmap(
                std::ptr::null_mut(),
                2 * PAGE,
                libc::PROT_READ | libc::PROT_WRITE,
                kind,
                -1,
                0,
            )
        };
        assert_ne!(at, libc::MAP_FAILED);
        // SAFETY: the second page of it.
        assert_eq!(unsafe { libc::munmap(at.wrapping_byte_add(PAGE), PAGE) }, 0);
        // All of both pages, and the middle.
        for (begin, len) in [(0, 2 * PAGE), (PAGE - 100, 200)] {
            let mut source = vec![7u8; len];
            let sges = cut(&mut source, &[len]);
            let (len, remote) = (len as u64, at.addr() as u64 + begin as u64);
            for direction in [Direction::Write, Direction::Read] {
                // SAFETY: as much local memory.
                let copied =
                    unsafe { process.copy(direction, Cursor::new(&sges), remote, len, true) };
                assert_eq!(copied, Err(CopyError::Remote));
            }
        }
        // SAFETY: the first page is there.
        let first = unsafe { std::slice::from_raw_parts(at.cast::<u8>(), PAGE) };
        assert!(first.iter().all(|byte| *byte == 7));
        // SAFETY: nothing uses it any more.
        unsafe { libc::munmap(at, PAGE) };
    }

    /// A process that has exited has no memory, whatever process has got its identifier.
    #[test]
    fn a_process_that_has_exited() {
        let mut child = std::process::Command::new("sleep")
            .arg("600")
            .spawn()
            .unwrap();
        let process = RemoteProcess {
            file: Some(ProcessFile::of(Pid::from_child(&child))),
            ..RemoteProcess::new(rustix::process::getpid())
        };
        child.kill().unwrap();
        child.wait().unwrap();
        let mut bytes = [1u8; 8];
        let there = bytes.as_ptr().expose_provenance() as u64;
        let mut to = [0u8; 8];
        let sges = cut(&mut to, &[8]);
        // SAFETY: eight bytes.
        let copied = unsafe { process.copy(Direction::Read, Cursor::new(&sges), there, 8, true) };
        assert_eq!(copied, Err(CopyError::PeerExited));
        bytes.fill(0);
        assert_eq!(to, bytes);
    }
}
