//! Why a measurement ended early.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

/// Set by the first SIGINT or SIGTERM.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Why a measurement ended early.
#[derive(Debug, PartialEq, Eq)]
pub enum Failure {
    /// The user ended it.
    Interrupted,
    /// Something went wrong: the message for the user.
    Error(String),
}

/// The result of what can end early.
pub type Result<T> = std::result::Result<T, Failure>;

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Interrupted => f.write_str("interrupted"),
            Failure::Error(message) => f.write_str(message),
        }
    }
}

/// An error with a message.
pub fn error<T>(message: impl Into<String>) -> Result<T> {
    Err(Failure::Error(message.into()))
}

/// Makes SIGINT and SIGTERM end the measurement in hand in good order. The second one ends the
/// program.
pub fn catch_signals() {
    extern "C" fn note(_signal: libc::c_int) {
        INTERRUPTED.store(true, Ordering::Relaxed);
    }
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: all zeros are a value of the type; the handler does what a handler may do.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = note as extern "C" fn(libc::c_int) as usize;
            action.sa_flags = libc::SA_RESETHAND;
            libc::sigaction(signal, &action, std::ptr::null_mut());
        }
    }
}

/// An error if the user has ended the program.
pub fn check_interrupted() -> Result<()> {
    if INTERRUPTED.load(Ordering::Relaxed) {
        return Err(Failure::Interrupted);
    }
    Ok(())
}
