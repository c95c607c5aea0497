//! The memory of another process, as the kernel copies from and to it.
//!
//! There are two ways. `process_vm_writev` and its sister take all pages at once, and are told
//! the process each time: it is looked up, and the kernel judges whether we may. The file of the
//! process's memory in `/proc` was opened once, and stands for the memory of that very process
//! for ever, so that a call on it is a quarter cheaper; but it takes one page after the other.
//! It is for short copies in one piece. Where it cannot be opened the other way is for all.

use std::fs::{File, OpenOptions};
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;

use rustix::io::Errno;
use rustix::process::Pid;

use crate::device::soft::mem::copy::Cursor;

/// How much at the end of a write becomes visible after all the rest.
const TAIL: u64 = 16;
/// Segments of ours in one call, but for the tail.
const PIECES: usize = 64;
/// More than so many bytes are not short: they may be in more than two pages.
const SHORT: u64 = 4096;

/// Why a copy was not made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CopyError {
    /// The peer is no more, or the kernel does not let us in any longer.
    PeerExited,
    /// Memory is not there, on either side.
    BadAddress,
}

/// A copy into the memory of a peer, or out of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    Write,
    Read,
}

/// See the module.
pub(crate) struct RemoteProcess {
    pid: Pid,
    file: Option<File>,
}

impl RemoteProcess {
    /// What is in the memory of a process at that address, all of it.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn read<const N: usize>(pid: Pid, at: u64) -> Result<[u8; N], Errno> {
        let foreign = RemoteProcess { pid, file: None };
        let mut found = [0u8; N];
        let (local, remote) = (iovec(found.as_mut_ptr(), N), iovec(at as *mut u8, N));
        // SAFETY: the bytes may be written.
        let n = unsafe { foreign.call(Direction::Read, &[local], &remote) }?;
        if n == N { Ok(found) } else { Err(Errno::FAULT) }
    }

    /// That of a process, which has those bytes at that address.
    pub fn open<const N: usize>(pid: Pid, at: u64, bytes: &[u8; N]) -> RemoteProcess {
        let mut foreign = RemoteProcess { pid, file: None };
        let path = format!("/proc/{pid}/mem");
        foreign.file = OpenOptions::new().read(true).write(true).open(path).ok();
        // Another process may have that identifier in the name space of what is mounted there.
        let mut found = [0u8; N];
        // SAFETY: the bytes may be written.
        let same = unsafe { foreign.copy_short(Direction::Read, found.as_mut_ptr(), at, N) };
        if !same || found != *bytes {
            foreign.file = None;
        }
        foreign
    }

    /// Copies in one piece, if the file is there. False if that was not possible, for whatever
    /// reason: the other way finds out.
    ///
    /// # Safety
    /// `len` bytes at `local` are memory of ours that may be read for a write, and written for a
    /// read.
    #[inline]
    unsafe fn copy_short(&self, way: Direction, local: *mut u8, remote: u64, len: usize) -> bool {
        let Some(file) = &self.file else {
            return false;
        };
        let (fd, at) = (file.as_raw_fd(), remote as libc::off64_t);
        // SAFETY: the caller's promise; what of the remote range there is, the kernel knows.
        let n = unsafe {
            match way {
                Direction::Write => libc::pwrite64(fd, local.cast(), len, at),
                Direction::Read => libc::pread64(fd, local.cast(), len, at),
            }
        };
        n as usize == len
    }

    /// Copies in the other way; gives the number of bytes.
    ///
    /// # Safety
    /// As [`RemoteProcess::copy_short`].
    unsafe fn call(
        &self,
        way: Direction,
        local: &[libc::iovec],
        remote: &libc::iovec,
    ) -> Result<usize, Errno> {
        let call = match way {
            Direction::Write => libc::process_vm_writev,
            Direction::Read => libc::process_vm_readv,
        };
        let pid = self.pid.as_raw_nonzero().get();
        // SAFETY: the caller's promise; what of the remote range there is, the kernel knows.
        let n = unsafe { call(pid, local.as_ptr(), local.len() as _, remote, 1, 0) };
        usize::try_from(n).map_err(|_| {
            let error = std::io::Error::last_os_error();
            Errno::from_io_error(&error).unwrap_or(Errno::IO)
        })
    }

    /// Copies `len` bytes, if they are few and in one piece of ours, and no part of them has to
    /// become visible before another. False if it takes [`RemoteProcess::copy`].
    ///
    /// # Safety
    /// As there.
    #[inline]
    pub unsafe fn try_short(
        &self,
        way: Direction,
        local: Cursor<'_>,
        remote: u64,
        len: u64,
    ) -> bool {
        let most = match way {
            Direction::Write => TAIL,
            Direction::Read => SHORT,
        };
        let mut local = local;
        match local.take(len) {
            // SAFETY: the caller's promise.
            Some((at, n)) if n == len && len <= most => unsafe {
                self.copy_short(way, at, remote, n as usize)
            },
            _ => false,
        }
    }

    /// Copies `len` bytes; with `is_end` the last ones of a write become visible last.
    ///
    /// # Safety
    /// The local segments are registered memory of at least that length, which may be read for
    /// a write and written for a read.
    pub unsafe fn copy(
        &self,
        way: Direction,
        mut local: Cursor<'_>,
        mut remote: u64,
        len: u64,
        is_end: bool,
    ) -> Result<(), CopyError> {
        let mut left = len;
        while left > 0 {
            let mut pieces = [const { MaybeUninit::uninit() }; PIECES + 1];
            let (mut count, mut bytes) = (0, 0);
            let mut ahead = local;
            while count < PIECES
                && let Some((at, n)) = ahead.take(left - bytes)
            {
                bytes += n;
                // The kernel copies one piece after the other.
                let tail = if is_end && way == Direction::Write && bytes == left && n > TAIL {
                    TAIL
                } else {
                    0
                };
                let bulk = (n - tail) as usize;
                pieces[count].write(iovec(at, bulk));
                count += 1;
                if tail > 0 {
                    pieces[count].write(iovec(at.wrapping_add(bulk), tail as usize));
                    count += 1;
                }
            }
            // SAFETY: so many were written.
            let pieces = unsafe { pieces[..count].assume_init_ref() };
            let target = iovec(remote as *mut u8, bytes as usize);
            // SAFETY: the caller's promise.
            let n = match unsafe { self.call(way, pieces, &target) } {
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
        assert!(RemoteProcess::open(pid, at, &[0; 8]).file.is_none());
        RemoteProcess::open(pid, at, &number.to_ne_bytes())
    }

    #[test]
    fn every_length_in_pieces_of_any_shape() {
        let foreign = own();
        assert!(foreign.file.is_some());
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
                    foreign.try_short(Direction::Write, from, remote, len),
                    len <= TAIL && is_one
                );
                foreign
                    .copy(Direction::Write, from, remote, len, true)
                    .unwrap();
                assert_eq!(
                    foreign.try_short(Direction::Read, to, remote, len),
                    len <= SHORT && is_one
                );
                foreign
                    .copy(Direction::Read, to, remote, len, true)
                    .unwrap();
            }
            assert_eq!((target, back), (source.clone(), source));
        }
    }

    #[test]
    fn memory_that_is_not_there() {
        let foreign = own();
        let mut bytes = [0u8; 8];
        let sges = cut(&mut bytes, &[8]);
        let local = Cursor::new(&sges);
        for way in [Direction::Read, Direction::Write] {
            // SAFETY: eight bytes.
            unsafe {
                assert!(!foreign.try_short(way, local, 8, 8));
                let copied = foreign.copy(way, local, 8, 8, true);
                assert_eq!(copied, Err(CopyError::BadAddress));
            }
        }
    }
}
