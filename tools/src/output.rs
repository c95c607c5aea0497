//! Standard output of the tools.

use std::io::{self, Write};

/// Writes to standard output at once. That a pipe is closed is the reader's right, and no error.
///
/// # Errors
/// Why standard output takes nothing, such as a full disk.
pub fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}
