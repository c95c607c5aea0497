//! Random numbers that nobody can predict.

use rustix::io::Errno;

/// A random number from the system, which a forked child does not share with its parent.
///
/// # Errors
/// The system gives none, such as under a filter of system calls.
pub(crate) fn random() -> Result<u64, Errno> {
    let mut bytes = [0; 8];
    // SAFETY: so many bytes may be written.
    match unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) } {
        8 => Ok(u64::from_ne_bytes(bytes)),
        _ => Err(Errno::IO),
    }
}
