//! Random numbers that nobody can predict.

use rustix::io::Errno;

use crate::kernel;

/// A random number from the system, which a forked child does not share with its parent.
///
/// # Errors
/// The system gives none, such as under a filter of system calls.
pub(crate) fn random() -> Result<u64, Errno> {
    kernel::random()
}
