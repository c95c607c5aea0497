//! Atomic operations on the memory of this process, for peers.

use super::copy::{self, Cursor};
use super::key_table;
use super::scope::Scope;
use crate::device::{ATOMIC_LEN, Access, AtomicOp, Remote, Sge, WcStatus};
use crate::guarded::{self, CopyFault};
use crate::handle::Guard;

/// Executes an operation on the word at an address of a key. Returns what the word was before.
///
/// # Errors
/// The status of the request of the peer: [`WcStatus::RemoteAccess`] if the key does not open the
/// word, or the word is not there, [`WcStatus::RemoteOperation`] if the address is not aligned.
pub fn execute(op: AtomicOp, word: Remote, scope: Scope, guard: &Guard) -> Result<u64, WcStatus> {
    let len = u64::from(ATOMIC_LEN);
    let need = Access::REMOTE_ATOMIC;
    let at = key_table::resolve(word.rkey, scope, word.addr, len, need, guard)
        .map_err(|_| WcStatus::RemoteAccess)?;
    // To the processor the address in memory counts, whatever the one is that the peer has named.
    if !at.is_multiple_of(len) {
        return Err(WcStatus::RemoteOperation);
    }
    // SAFETY: registered for this, for as long as the section lasts, and aligned.
    unsafe { apply(op, at as *mut u8) }.map_err(|_| WcStatus::RemoteAccess)
}

/// Changes the word at an address. Returns what the word was before.
///
/// # Errors
/// The word is not there.
///
/// # Safety
/// The word may be changed, and `at` is aligned to [`ATOMIC_LEN`].
pub unsafe fn apply(op: AtomicOp, at: *mut u8) -> Result<u64, CopyFault> {
    // SAFETY: the caller's promise.
    unsafe {
        match op {
            AtomicOp::FetchAdd { add } => guarded::fetch_add(at, add),
            AtomicOp::CompareSwap { compare, swap } => guarded::compare_swap(at, compare, swap),
        }
    }
}

/// Writes what a word of the peer was before to the segments of a request.
///
/// # Errors
/// The segments cannot be written.
///
/// # Safety
/// The segments are registered, and hold [`ATOMIC_LEN`] bytes.
pub unsafe fn store_result(before: u64, segments: &[Sge]) -> Result<(), CopyFault> {
    let before = before.to_ne_bytes();
    // SAFETY: the caller's promise.
    unsafe { copy::scatter(before.as_ptr(), before.len(), Cursor::new(segments)) }
}
