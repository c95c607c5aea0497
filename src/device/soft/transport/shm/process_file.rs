//! The memory of another process as a file, `/proc/PID/mem`, for short reads.
//!
//! A read of up to a page takes three quarters of the time of `process_vm_readv(2)`: that searches the
//! process and checks the access anew each time, where the file was opened once. From some pages on it
//! takes longer, as the kernel copies each page twice.
//!
//! The file is that of the memory which the process had when the file was opened. It reads as empty once
//! the process has exited, or executes another program, and never becomes that of a process which has got
//! the same identifier.
//!
//! The file ignores the protection of pages, so it is not opened for writing: pages that a process may
//! only read shall stay as they are. A read obtains what there is in pages that the process has protected
//! against itself since it registered them, as a card does, which reads pages by their physical addresses.

use rustix::io::Errno;

use crate::descriptor::OwnedFd;
use crate::kernel;
use crate::kernel::process::Pid;

/// The most bytes of a read, one page of most processors.
const MOST: usize = 4096;

/// An address at which no process has memory: a read fails there as long as there is the process.
const NOWHERE: u64 = 0;

/// The file with the memory of a process.
#[derive(Debug)]
pub(super) struct ProcessFile(OwnedFd);

impl ProcessFile {
    /// The file of the process with that identifier, if these bytes are at `addr` of it. The file system may
    /// show the processes of another PID namespace, so the bytes have to be such that no other process has
    /// them. `None` if there is no such file.
    pub fn open<const N: usize>(pid: Pid, addr: u64, bytes: &[u8; N]) -> Option<ProcessFile> {
        // Not by `descriptor::open`: this may wait for the process, and a copy keeps no connection open.
        let file = ProcessFile(kernel::process_memory(pid).ok()?.into());
        let mut found = [0; N];
        // SAFETY: so many bytes may be written.
        let n = unsafe { file.read(found.as_mut_ptr(), addr, N) }.ok()?;
        (n == N && found == *bytes).then_some(file)
    }

    /// Whether the process has exited with all its threads, or executes another program.
    pub fn is_over(&self) -> bool {
        let mut byte = 0;
        // SAFETY: one byte may be written.
        let read = unsafe { self.read(&raw mut byte, NOWHERE, 1) };
        read == Ok(0)
    }

    /// Whether a read of so many bytes takes less time than `process_vm_readv(2)`.
    #[inline]
    pub fn is_faster(len: u64) -> bool {
        len <= MOST as u64
    }

    /// Reads up to `len` bytes at `from` of the process, and returns their number: 0 if the process does not
    /// have that memory any longer.
    ///
    /// # Errors
    /// Of the kernel, if memory of either side is not there.
    ///
    /// # Safety
    /// The memory at `to` may be changed, as far as it is there.
    #[inline]
    pub unsafe fn read(&self, to: *mut u8, from: u64, len: usize) -> Result<usize, Errno> {
        // SAFETY: the caller's promise.
        unsafe { kernel::read_at(&self.0, to, len, from) }
    }
}

#[cfg(test)]
impl ProcessFile {
    /// The file of a process, whatever its memory holds.
    pub fn of(pid: Pid) -> ProcessFile {
        ProcessFile(kernel::process_memory(pid).unwrap().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_tell_the_process() {
        let bytes = Box::new([0x5e_u8, 0xed, 1, 2, 3]);
        let addr = bytes.as_ptr().expose_provenance() as u64;
        let own = rustix::process::getpid();
        assert!(ProcessFile::open(own, addr, &bytes).is_some());
        assert!(ProcessFile::open(own, addr, &[0x5e, 0xed, 1, 2, 4]).is_none());
        assert!(ProcessFile::open(own, 8, &bytes).is_none());
        let nobody = Pid::from_raw(i32::MAX).unwrap();
        assert!(ProcessFile::open(nobody, addr, &bytes).is_none());
    }
}
