//! Standard output of the tools.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;

/// Writes to standard output at once. That a pipe is closed is the reader's right, and no error.
///
/// # Errors
/// Why standard output takes nothing, such as a full disk.
pub fn print(text: &str) -> io::Result<()> {
    write_to(&mut io::stdout().lock(), text)
}

fn write_to(out: &mut impl Write, text: &str) -> io::Result<()> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// Standard output for this program alone: what libraries in the process print goes to standard error.
#[allow(
    dead_code,
    reason = "dat-perf loads one library, whose messages are of use"
)]
pub struct OwnOutput(File);

#[allow(
    dead_code,
    reason = "dat-perf loads one library, whose messages are of use"
)]
impl OwnOutput {
    /// From now on.
    ///
    /// # Errors
    /// There is no descriptor left, or no standard output.
    pub fn take() -> io::Result<OwnOutput> {
        let own = io::stdout().as_fd().try_clone_to_owned()?;
        // SAFETY: numbers. Without a standard error both stay as they are.
        unsafe { libc::dup2(libc::STDERR_FILENO, libc::STDOUT_FILENO) };
        Ok(OwnOutput(own.into()))
    }

    /// Writes after what libraries have printed, as [`print()`] does.
    ///
    /// # Errors
    /// As [`print()`].
    pub fn print(&mut self, text: &str) -> io::Result<()> {
        // SAFETY: flushes all streams of the C library.
        unsafe { libc::fflush(std::ptr::null_mut()) };
        write_to(&mut self.0, text)
    }
}
