//! The command line of the tools.

use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

use clap::Parser;

/// The options that the program was called with.
///
/// # Errors
/// The status that the program ends with, which has none: 0 after the help or the version, `failure` if standard output
/// does not take it, and `misuse` after a message about wrong options.
pub fn parse<T: Parser>(misuse: u8, failure: u8) -> Result<T, ExitCode> {
    let error = match T::try_parse() {
        Ok(options) => return Ok(options),
        Err(error) => error,
    };
    let printed = error.print().and_then(|()| io::stdout().flush());
    if error.use_stderr() {
        return Err(ExitCode::from(misuse));
    }
    match printed {
        // That a pipe is closed is the reader's right.
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            let _ = writeln!(io::stderr(), "{}: {error}", T::command().get_name());
            Err(ExitCode::from(failure))
        }
        _ => Err(ExitCode::SUCCESS),
    }
}
