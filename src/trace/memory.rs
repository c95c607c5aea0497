//! Memory of the program that a trace shows. The program may have given any address; the kernel
//! reads it, so that a wrong one is found out instead of ending the process.

use std::os::fd::AsFd;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// `len` bytes from an address, or as many as there are.
pub fn bytes(address: u64, len: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    if address == 0 || bytes.try_reserve_exact(len).is_err() {
        return bytes;
    }
    bytes.resize(len, 0);
    let got = copy(address, &mut bytes).unwrap_or(0);
    bytes.truncate(got);
    bytes
}

/// All of `len` bytes from an address; `None` if they are not there.
pub fn exact(address: u64, len: usize) -> Option<Vec<u8>> {
    let bytes = bytes(address, len);
    (bytes.len() == len).then_some(bytes)
}

/// The pointer at an address.
pub fn pointer(address: u64) -> Option<u64> {
    let bytes = exact(address, size_of::<usize>())?;
    let pointer = bytes.try_into().ok().map(usize::from_ne_bytes)?;
    Some(pointer as u64)
}

/// The string at an address, up to `len` bytes of it.
pub fn string(address: u64, len: usize) -> Option<Vec<u8>> {
    // Up to the end of each page, behind which nothing may be mapped.
    const PAGE: u64 = 4096;
    let mut text = Vec::new();
    while text.len() < len {
        let at = address.checked_add(text.len() as u64)?;
        let part = ((PAGE - at % PAGE) as usize).min(len - text.len());
        let part = exact(at, part)?;
        if let Some(end) = part.iter().position(|byte| *byte == 0) {
            text.extend_from_slice(&part[..end]);
            break;
        }
        text.extend_from_slice(&part);
    }
    Some(text)
}

/// Copies from an address; how many bytes could be read.
fn copy(address: u64, to: &mut [u8]) -> rustix::io::Result<usize> {
    let local = libc::iovec {
        iov_base: to.as_mut_ptr().cast(),
        iov_len: to.len(),
    };
    let remote = libc::iovec {
        iov_base: std::ptr::without_provenance_mut(usize::try_from(address).unwrap_or(0)),
        iov_len: to.len(),
    };
    // SAFETY: the destination has room for as many bytes; the source is not accessed by this process.
    let got = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    match usize::try_from(got) {
        Ok(got) => Ok(got),
        // Filters of system calls, as containers have them, may refuse that one.
        Err(_) => match std::io::Error::last_os_error().raw_os_error() {
            Some(libc::EPERM | libc::ENOSYS | libc::EACCES) => from_file(address, to),
            _ => Err(Errno::FAULT),
        },
    }
}

/// The same by the file of the process's memory.
fn from_file(address: u64, to: &mut [u8]) -> rustix::io::Result<usize> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = rustix::fs::open("/proc/self/mem", flags, Mode::empty())?;
    rustix::io::pread(file.as_fd(), to, address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_pages::TestPages;

    #[test]
    fn what_is_there_is_read_and_nothing_else() {
        let pages = TestPages::new(2);
        pages.unmap(1..2);
        let len = TestPages::page();
        let last = pages.at(len - 4);
        // SAFETY: inside of the first page.
        unsafe { last.copy_from_nonoverlapping(c"abc".as_ptr().cast(), 4) };
        let end = pages.addr(len);
        assert_eq!(exact(end - 4, 4).as_deref(), Some(&b"abc\0"[..]));
        assert_eq!(exact(end - 4, 5), None);
        assert_eq!(string(end - 4, 100).as_deref(), Some(&b"abc"[..]));
        assert_eq!(string(end - 4, 2).as_deref(), Some(&b"ab"[..]));
        // SAFETY: as above.
        unsafe { pages.at(len - 1).write(b'd') };
        assert_eq!(string(end - 4, 100), None);
        for wrong in [0, 8, end, u64::MAX, u64::MAX - 4095] {
            assert_eq!(exact(wrong, 1), None, "{wrong:#x}");
        }
    }

    #[test]
    fn the_file_of_the_memory_gives_the_same() {
        let value = *b"value";
        let mut got = [0; 5];
        let address = value.as_ptr() as u64;
        assert_eq!(from_file(address, &mut got), Ok(5));
        assert_eq!(got, value);
        assert!(from_file(8, &mut got).is_err());
    }
}
