//! Copies from and to the memory of another process by the kernel (cross-memory attach).
//!
//! There are two interfaces. `process_vm_readv(2)` and `process_vm_writev(2)` handle many pages at
//! once, but look up the process and check the permission at each call. The file
//! `/proc/PID/mem` is opened once and stays bound to the memory of that process, so that a read or
//! write is a quarter cheaper; but it handles one page after the other. The file is used for short
//! copies of one local segment, and the system calls for all others, or for all copies if the file
//! cannot be opened.

use std::fs::OpenOptions;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;

use rustix::io::Errno;
use rustix::process::Pid;

use crate::descriptor::OwnedFd;
use crate::device::soft::mem::copy::Cursor;

/// So many bytes at the end of a write become visible after all others.
const TAIL: u64 = 16;
/// The most local segments in one system call, not counting the tail.
const MAX_SEGMENTS: usize = 64;
/// The most bytes of a short copy, which are in two pages at most.
const SHORT: u64 = 4096;

/// Why a copy failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CopyError {
    /// The process has exited, or the kernel does not permit the access any longer.
    PeerExited,
    /// A part of the range is not mapped, in either process.
    BadAddress,
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
pub(crate) struct RemoteProcess {
    pid: Pid,
    /// `/proc/PID/mem`, if it can be opened.
    mem_file: Option<OwnedFd>,
}

impl RemoteProcess {
    /// Reads `N` bytes at that address of a process.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn read<const N: usize>(pid: Pid, addr: u64) -> Result<[u8; N], Errno> {
        let process = RemoteProcess {
            pid,
            mem_file: None,
        };
        let mut found = [0u8; N];
        let (local, remote) = (iovec(found.as_mut_ptr(), N), iovec(addr as *mut u8, N));
        // SAFETY: the bytes may be written.
        let n = unsafe { process.process_vm(Direction::Read, &[local], &remote) }?;
        if n == N { Ok(found) } else { Err(Errno::FAULT) }
    }

    /// The memory of a process that is known to have those bytes at that address.
    pub fn open<const N: usize>(pid: Pid, addr: u64, bytes: &[u8; N]) -> RemoteProcess {
        let mut process = RemoteProcess {
            pid,
            mem_file: None,
        };
        let path = format!("/proc/{pid}/mem");
        process.mem_file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .ok()
            .map(OwnedFd::from);
        // The `/proc` that is mounted here may be of another PID namespace, in which another process
        // has that identifier.
        let mut found = [0u8; N];
        // SAFETY: the bytes may be written.
        let same = unsafe { process.copy_by_file(Direction::Read, found.as_mut_ptr(), addr, N) };
        if !same || found != *bytes {
            process.mem_file = None;
        }
        process
    }

    /// Copies by the file, if that is open. False if not all was copied, for whatever reason: the
    /// system call reports it.
    ///
    /// # Safety
    /// `len` bytes at `local` are memory of ours that may be read for a write, and written for a
    /// read.
    #[inline]
    unsafe fn copy_by_file(
        &self,
        direction: Direction,
        local: *mut u8,
        remote: u64,
        len: usize,
    ) -> bool {
        let Some(file) = &self.mem_file else {
            return false;
        };
        let (fd, at) = (file.as_raw_fd(), remote as libc::off64_t);
        // The functions of the C library are points at which a thread is cancelled.
        // SAFETY: the caller's promise; the kernel checks the remote range.
        let n = unsafe {
            match direction {
                Direction::Write => libc::syscall(libc::SYS_pwrite64, fd, local, len, at),
                Direction::Read => libc::syscall(libc::SYS_pread64, fd, local, len, at),
            }
        };
        n as usize == len
    }

    /// Copies by one system call, and returns the number of bytes.
    ///
    /// # Safety
    /// As for [`RemoteProcess::copy_by_file`].
    unsafe fn process_vm(
        &self,
        direction: Direction,
        local: &[libc::iovec],
        remote: &libc::iovec,
    ) -> Result<usize, Errno> {
        let call = match direction {
            Direction::Write => libc::process_vm_writev,
            Direction::Read => libc::process_vm_readv,
        };
        let pid = self.pid.as_raw_nonzero().get();
        // SAFETY: the caller's promise; the kernel checks the remote range.
        let n = unsafe { call(pid, local.as_ptr(), local.len() as _, remote, 1, 0) };
        usize::try_from(n).map_err(|_| {
            let error = std::io::Error::last_os_error();
            Errno::from_io_error(&error).unwrap_or(Errno::IO)
        })
    }

    /// Copies `len` bytes by the file, if they are few, of one local segment, and no part has to
    /// become visible before another. False if they are to be copied by [`RemoteProcess::copy`].
    ///
    /// # Safety
    /// As for [`RemoteProcess::copy`].
    #[inline]
    pub unsafe fn try_short(
        &self,
        direction: Direction,
        local: Cursor<'_>,
        remote: u64,
        len: u64,
    ) -> bool {
        let most = match direction {
            Direction::Write => TAIL,
            Direction::Read => SHORT,
        };
        let mut local = local;
        match local.take(len) {
            // SAFETY: the caller's promise.
            Some((at, n)) if n == len && len <= most => unsafe {
                self.copy_by_file(direction, at, remote, n as usize)
            },
            _ => false,
        }
    }

    /// Copies `len` bytes; with `is_end` the last bytes of a write become visible last.
    ///
    /// # Safety
    /// The local segments are registered memory of at least that length, which may be read for
    /// a write and written for a read.
    pub unsafe fn copy(
        &self,
        direction: Direction,
        mut local: Cursor<'_>,
        mut remote: u64,
        len: u64,
        is_end: bool,
    ) -> Result<(), CopyError> {
        let mut left = len;
        while left > 0 {
            let mut segments = [const { MaybeUninit::uninit() }; MAX_SEGMENTS + 1];
            let (mut count, mut bytes) = (0, 0);
            let mut ahead = local;
            while count < MAX_SEGMENTS
                && let Some((at, n)) = ahead.take(left - bytes)
            {
                bytes += n;
                // The kernel copies one segment after the other.
                let tail = if is_end && direction == Direction::Write && bytes == left && n > TAIL {
                    TAIL
                } else {
                    0
                };
                let bulk = (n - tail) as usize;
                segments[count].write(iovec(at, bulk));
                count += 1;
                if tail > 0 {
                    segments[count].write(iovec(at.wrapping_add(bulk), tail as usize));
                    count += 1;
                }
            }
            // SAFETY: so many were written.
            let segments = unsafe { segments[..count].assume_init_ref() };
            let target = iovec(remote as *mut u8, bytes as usize);
            // SAFETY: the caller's promise.
            let n = match unsafe { self.process_vm(direction, segments, &target) } {
                Ok(n) if n > 0 => n as u64,
                Err(Errno::SRCH | Errno::PERM) => return Err(CopyError::PeerExited),
                _ => return Err(CopyError::BadAddress),
            };
            local.advance(n);
            remote = remote.wrapping_add(n);
            left -= n;
        }
        Ok(())
    }
}

fn iovec(at: *mut u8, len: usize) -> libc::iovec {
    libc::iovec {
        iov_base: at.cast(),
        iov_len: len,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::soft::mem::copy::tests::cut;

    fn own() -> RemoteProcess {
        let number = Box::new(0x5eed_u64);
        let pid = rustix::process::getpid();
        let at = std::ptr::from_ref(&*number).addr() as u64;
        assert_eq!(RemoteProcess::read(pid, at), Ok(number.to_ne_bytes()));
        assert_eq!(RemoteProcess::read::<8>(pid, 8), Err(Errno::FAULT));
        assert!(RemoteProcess::open(pid, at, &[0; 8]).mem_file.is_none());
        RemoteProcess::open(pid, at, &number.to_ne_bytes())
    }

    #[test]
    fn every_length_in_segments_of_any_shape() {
        let process = own();
        assert!(process.mem_file.is_some());
        for lens in [
            &[1][..],
            &[15, 1],
            &[16],
            &[17],
            &[0, 40, 0],
            &[4096],
            &[9000],
            &[3; 200],
            &[1, 5000, 16],
        ] {
            let len = lens.iter().sum::<usize>();
            let is_one = lens.contains(&len);
            let mut source: Vec<u8> = (0..len).map(|i| (i * 31 + 7) as u8).collect();
            let mut target = vec![0u8; len];
            let remote = target.as_mut_ptr() as u64;
            let mut back = vec![0u8; len];
            let (from, to) = (cut(&mut source, lens), cut(&mut back, lens));
            let (from, to) = (Cursor::new(&from), Cursor::new(&to));
            let len = len as u64;
            // SAFETY: three vectors of that length.
            unsafe {
                assert_eq!(
                    process.try_short(Direction::Write, from, remote, len),
                    len <= TAIL && is_one
                );
                process
                    .copy(Direction::Write, from, remote, len, true)
                    .unwrap();
                assert_eq!(
                    process.try_short(Direction::Read, to, remote, len),
                    len <= SHORT && is_one
                );
                process
                    .copy(Direction::Read, to, remote, len, true)
                    .unwrap();
            }
            assert_eq!((target, back), (source.clone(), source));
        }
    }

    #[test]
    fn memory_that_is_not_there() {
        let process = own();
        let mut bytes = [0u8; 8];
        let sges = cut(&mut bytes, &[8]);
        let local = Cursor::new(&sges);
        for direction in [Direction::Read, Direction::Write] {
            // SAFETY: eight bytes.
            unsafe {
                assert!(!process.try_short(direction, local, 8, 8));
                let copied = process.copy(direction, local, 8, 8, true);
                assert_eq!(copied, Err(CopyError::BadAddress));
            }
        }
    }
}
