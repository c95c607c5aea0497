//! Copies by the kernel, for architectures for which there is no assembly.
//!
//! `process_vm_readv(2)` on the own process reads and writes this process's memory, and returns an
//! error where there is none.

use std::sync::atomic::{Ordering, fence};

/// Copies at most `len` bytes, and returns the number.
fn read(to: *mut u8, from: *const u8, len: usize) -> usize {
    let iovec = |at: *mut u8| libc::iovec {
        iov_base: at.cast(),
        iov_len: len,
    };
    let (local, remote) = (iovec(to), iovec(from.cast_mut()));
    // SAFETY: the kernel checks both ranges; the caller may change the one at `to`.
    let n = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    usize::try_from(n).unwrap_or(0)
}

/// See [`super::copy`]. Ranges that overlap go through a buffer.
///
/// # Safety
/// As [`super::copy`].
pub unsafe fn copy(to: *mut u8, from: *const u8, len: usize) -> usize {
    let overlap = to.addr().abs_diff(from.addr()) < len;
    if overlap {
        let mut bytes = vec![0u8; len];
        let n = read(bytes.as_mut_ptr(), from, len);
        if n < len {
            return from.addr() + n;
        }
        return store_bytes(to, &bytes);
    }
    let mut done = 0;
    while done < len {
        let (to, from) = (to.wrapping_add(done), from.wrapping_add(done));
        match read(to, from, len - done) {
            0 => {
                let mut byte = 0;
                let is_source = read(&mut byte, from, 1) == 0;
                return if is_source { from.addr() } else { to.addr() }.max(1);
            }
            n => done += n,
        }
    }
    0
}

/// Stores bytes of ours.
fn store_bytes(to: *mut u8, bytes: &[u8]) -> usize {
    let mut done = 0;
    while done < bytes.len() {
        let to = to.wrapping_add(done);
        match read(to, bytes[done..].as_ptr(), bytes.len() - done) {
            0 => return to.addr().max(1),
            n => done += n,
        }
    }
    0
}

/// See [`super::copy_words`].
///
/// # Safety
/// As [`super::copy_words`].
pub unsafe fn words(to: *mut u8, from: *const u8, len: usize) -> usize {
    // SAFETY: the caller's promise.
    unsafe { copy(to, from, len) }
}

/// See [`super::copy_words`]: eight bytes.
///
/// # Safety
/// As [`super::copy_words`].
pub unsafe fn word(to: *mut u8, from: *const u8) -> usize {
    // SAFETY: the caller's promise.
    unsafe { copy(to, from, 8) }
}

/// See [`super::copy_aligned_word`].
///
/// # Safety
/// As [`super::copy_aligned_word`].
pub unsafe fn aligned_word(to: *mut u8, from: *const u8) -> usize {
    fence(Ordering::Release);
    // SAFETY: the caller's promise.
    unsafe { copy(to, from, 8) }
}

/// See [`super::ATOMICS`]: no system call changes a word of memory in one piece and returns what it
/// was.
pub const ATOMICS: bool = false;

/// See [`super::fetch_add`].
///
/// # Safety
/// As [`super::fetch_add`].
pub unsafe fn fetch_add(at: *mut u8, _add: u64) -> (usize, u64) {
    (at.addr().max(1), 0)
}

/// See [`super::compare_swap`].
///
/// # Safety
/// As [`super::compare_swap`].
pub unsafe fn compare_swap(at: *mut u8, _compare: u64, _swap: u64) -> (usize, u64) {
    (at.addr().max(1), 0)
}

macro_rules! store {
    ($name:ident, $type:ty) => {
        /// See [`super::store`].
        ///
        /// # Safety
        /// As [`super::store`].
        pub unsafe fn $name(to: *mut u8, value: $type) -> usize {
            fence(Ordering::Release);
            store_bytes(to, &value.to_ne_bytes())
        }
    };
}
store!(store_8, u64);
store!(store_4, u32);
store!(store_2, u16);
store!(store_1, u8);

/// See [`super::is_readable`].
///
/// # Safety
/// None; as the functions of the other architectures.
pub unsafe fn read_pages(at: *const u8, len: usize) -> usize {
    let page = rustix::param::page_size();
    let mut next = at.addr();
    while next < at.addr() + len {
        let mut byte = 0;
        if read(&mut byte, at.with_addr(next), 1) == 0 {
            return next.max(1);
        }
        next = (next / page + 1) * page;
    }
    0
}
