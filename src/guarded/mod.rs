//! Copies from and to memory that may be unmapped, protected or cut off (a mapped file that was
//! truncated) at any time: such a copy fails, where a plain load or store would end the process.
//!
//! The program owns the memory that it registers, and may unmap it while a peer reads or writes it.
//! Every load and store of such memory is one of the instructions of this module. Each has an entry
//! in a table, which says where execution goes on after a fault; the handler of `SIGSEGV` and
//! `SIGBUS` ([`handler`]) finds the interrupted instruction there. A fault at any other instruction
//! is the program's, and goes to the handler that the program has.
//!
//! Each processor has a file with its instructions, in assembly. A function there returns 0, or the address of the
//! fault.

#[cfg_attr(target_arch = "x86_64", path = "x86_64/mod.rs")]
#[cfg_attr(target_arch = "x86", path = "x86.rs")]
#[cfg_attr(target_arch = "aarch64", path = "aarch64.rs")]
#[cfg_attr(target_arch = "powerpc64", path = "powerpc64.rs")]
#[cfg_attr(target_arch = "s390x", path = "s390x.rs")]
#[cfg_attr(target_arch = "riscv64", path = "riscv64.rs")]
mod arch;
mod entries;
mod handler;
pub(crate) mod table;
#[cfg(test)]
mod tests;

/// Whether other processors see the stores of a processor in their order.
pub(crate) const STORES_IN_ORDER: bool = cfg!(any(
    target_arch = "x86_64",
    target_arch = "x86",
    target_arch = "s390x"
));

/// The bits that the address of a fault has in common with that of a byte which was to be copied: on s390x the kernel gives
/// the address of the page, and on riscv64 whole words are loaded that have some of the bytes.
const FAULT_MASK: usize = if cfg!(target_arch = "s390x") {
    !4095
} else if cfg!(target_arch = "riscv64") {
    !7
} else {
    !0
};

/// The memory of a copy that cannot be accessed. The copy was made in part, or not at all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CopyFault {
    /// The memory that is read.
    Source,
    /// The memory that is written.
    Target,
}

/// To be called before the first copy, and from time to time: the program may have installed other
/// handlers of the two signals since the last call, which are called by ours from now on.
pub(crate) fn install_handlers() {
    handler::install();
}

/// The handler and the flags of an action of a signal, or those of the program that are behind our
/// handler.
pub(crate) fn action_of_program(
    signal: libc::c_int,
    action: &libc::sigaction,
) -> (usize, libc::c_int) {
    handler::of_program(signal, (action.sa_sigaction, action.sa_flags))
}

/// The result of a function of `arch`.
#[inline(always)]
fn result(fault: usize, from: *const u8, to: *mut u8, len: usize) -> Result<(), CopyFault> {
    if fault == 0 {
        Ok(())
    } else {
        Err(faulted(fault, from.addr(), to.addr(), len))
    }
}

/// Which side of a copy cannot be accessed at this address.
#[cold]
#[inline(never)]
fn faulted(fault: usize, from: usize, to: usize, len: usize) -> CopyFault {
    let is_in = |start: usize| {
        let start_of_fault = start & FAULT_MASK;
        (fault & FAULT_MASK).wrapping_sub(start_of_fault) < len + (start - start_of_fault)
    };
    if !is_in(to) {
        return CopyFault::Source;
    }
    if !is_in(from) {
        return CopyFault::Target;
    }
    // The ranges overlap. What is read was no fault if it can be read.
    match is_readable(std::ptr::with_exposed_provenance(fault), 1) {
        Ok(()) => CopyFault::Target,
        Err(_) => CopyFault::Source,
    }
}

/// Copies 8 to 16 bytes, as [`copy`] does.
///
/// # Errors
/// The side that cannot be accessed.
///
/// # Safety
/// The bytes at `to` may be changed.
#[inline(always)]
pub(crate) unsafe fn copy_words(from: *const u8, to: *mut u8, len: usize) -> Result<(), CopyFault> {
    debug_assert!((8..=16).contains(&len));
    // SAFETY: the caller's promise.
    let fault = unsafe {
        match len {
            8 => arch::word(to, from),
            _ => arch::words(to, from, len),
        }
    };
    result(fault, from, to, len)
}

/// Copies; the ranges may overlap. If they do not, the last byte is stored once, by the last store: a program may
/// poll it, and change it when it has arrived. Where [`STORES_IN_ORDER`], it is visible last, too.
///
/// # Errors
/// The side that cannot be accessed.
///
/// # Safety
/// The bytes at `to` may be changed.
#[inline(always)]
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) -> Result<(), CopyFault> {
    // SAFETY: the caller's promise.
    result(unsafe { arch::copy(to, from, len) }, from, to, len)
}

/// [`copy`] to memory that a peer has read on another processor: from some length on, the cache lines
/// that are overwritten are not fetched from there, if this processor can do so.
///
/// # Errors
/// The side that cannot be accessed.
///
/// # Safety
/// As [`copy`].
#[inline(always)]
pub(crate) unsafe fn copy_for_peer(
    from: *const u8,
    to: *mut u8,
    len: usize,
) -> Result<(), CopyFault> {
    #[cfg(target_arch = "x86_64")]
    let copy = arch::copy_for_peer;
    #[cfg(not(target_arch = "x86_64"))]
    let copy = arch::copy;
    // SAFETY: the caller's promise.
    result(unsafe { copy(to, from, len) }, from, to, len)
}

/// Whether [`copy_for_peer`] of so many bytes fetches no cache lines of its target.
#[inline(always)]
pub(crate) fn fetches_nothing(len: usize) -> bool {
    let _ = len;
    #[cfg(target_arch = "x86_64")]
    return arch::fetches_nothing(len);
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Copies a word to an aligned address in one piece, after all earlier stores.
///
/// # Errors
/// The side that cannot be accessed.
///
/// # Safety
/// As [`copy`]; `to` is aligned to 8.
#[inline(always)]
pub(crate) unsafe fn copy_aligned_word(from: *const u8, to: *mut u8) -> Result<(), CopyFault> {
    debug_assert!(to.addr().is_multiple_of(8));
    // SAFETY: the caller's promise.
    result(unsafe { arch::aligned_word(to, from) }, from, to, 8)
}

/// Stores 1, 2, 4 or 8 bytes at an address that is aligned to that number in one piece, after all
/// earlier stores.
///
/// # Errors
/// The memory cannot be written.
///
/// # Safety
/// As [`copy`].
#[inline]
pub(crate) unsafe fn store(to: *mut u8, bytes: &[u8]) -> Result<(), CopyFault> {
    debug_assert!(to.addr().is_multiple_of(bytes.len()));
    // SAFETY: the caller's promise.
    let fault = unsafe {
        match *bytes {
            [a, b, c, d, e, f, g, h] => {
                arch::store_8(to, u64::from_ne_bytes([a, b, c, d, e, f, g, h]))
            }
            [a, b, c, d] => arch::store_4(to, u32::from_ne_bytes([a, b, c, d])),
            [a, b] => arch::store_2(to, u16::from_ne_bytes([a, b])),
            [a] => arch::store_1(to, a),
            _ => unreachable!("a power of two, at most 8"),
        }
    };
    match fault {
        0 => Ok(()),
        _ => Err(CopyFault::Target),
    }
}

/// Adds to the word at an address in one piece. Returns what it was before.
///
/// # Errors
/// The memory cannot be read or written.
///
/// # Safety
/// The word at `at` may be changed; `at` is aligned to 8.
pub(crate) unsafe fn fetch_add(at: *mut u8, add: u64) -> Result<u64, CopyFault> {
    debug_assert!(at.addr().is_multiple_of(8));
    // SAFETY: the caller's promise.
    match unsafe { arch::fetch_add(at, add) } {
        (0, before) => Ok(before),
        _ => Err(CopyFault::Target),
    }
}

/// Replaces the word at an address by `swap`, if it is `compare`, in one piece. Returns what it was
/// before.
///
/// # Errors
/// The memory cannot be read or written.
///
/// # Safety
/// As [`fetch_add`].
pub(crate) unsafe fn compare_swap(at: *mut u8, compare: u64, swap: u64) -> Result<u64, CopyFault> {
    debug_assert!(at.addr().is_multiple_of(8));
    // SAFETY: the caller's promise.
    match unsafe { arch::compare_swap(at, compare, swap) } {
        (0, before) => Ok(before),
        _ => Err(CopyFault::Target),
    }
}

/// Checks that each page of a range can be read at this moment.
///
/// # Errors
/// [`CopyFault::Source`].
#[inline]
pub(crate) fn is_readable(at: *const u8, len: usize) -> Result<(), CopyFault> {
    if len == 0 {
        return Ok(());
    }
    // SAFETY: nothing is written, and memory that cannot be read is a result.
    match unsafe { arch::read_pages(at, len) } {
        0 => Ok(()),
        _ => Err(CopyFault::Source),
    }
}

/// [`is_readable`] of at most a page, in as few instructions as can be: it is a part of each short post to a driver.
#[inline(always)]
pub(crate) fn is_short_readable(at: *const u8, len: usize) -> bool {
    debug_assert!(len <= 4096);
    #[cfg(not(target_arch = "x86_64"))]
    return is_readable(at, len).is_ok();
    // SAFETY: nothing is written, and memory that cannot be read is a result.
    #[cfg(target_arch = "x86_64")]
    return len == 0 || unsafe { arch::are_ends_readable(at, len) };
}
