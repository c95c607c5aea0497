//! `dat-trace`: runs a program whose DAT calls the libraries write down.
//!
//! The libraries do that themselves, as `DAT_TRACE` and `DAT_TRACE_FILE` say; this program sets both and
//! becomes the other one. Before that it looks whether the program will load one of these libraries,
//! since otherwise there would be no trace, and no word about that.

mod arguments;
#[path = "trace/program.rs"]
mod program;

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::IntoRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::Parser;

/// Exit status if the program was not even tried.
const OWN_ERROR: u8 = 125;
/// Exit status if the program cannot be executed.
const NOT_EXECUTABLE: u8 = 126;
/// Exit status if there is no such program.
const NOT_FOUND: u8 = 127;

/// Run a program and write its DAT calls down.
///
/// Each call is a line with the arguments, the result and how long it took; at the exit of the
/// program there is a table of all functions.
///
/// Exit status: that of the program; 125 for an error of dat-trace, 126 if the program cannot be
/// executed, 127 if it is not found.
#[derive(Parser)]
#[command(name = "dat-trace", version)]
struct Options {
    /// Only the table
    #[arg(short = 'c', long)]
    summary_only: bool,
    /// Write to a file instead of standard error; %p in its name is the number of the process
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true)]
    program: Vec<OsString>,
}

fn main() -> ExitCode {
    let options: Options = match arguments::parse(OWN_ERROR, OWN_ERROR) {
        Ok(options) => options,
        Err(status) => return status,
    };
    let [program, arguments @ ..] = options.program.as_slice() else {
        return ExitCode::from(OWN_ERROR);
    };
    let mut command = Command::new(program);
    command.args(arguments);
    command.env(
        "DAT_TRACE",
        if options.summary_only {
            "summary"
        } else {
            "calls"
        },
    );
    match &options.output {
        None => command.env_remove("DAT_TRACE_FILE"),
        Some(file) => match prepare(file) {
            Ok(file) => command.env("DAT_TRACE_FILE", file),
            Err(error) => {
                say(&format!("{}: {error}", file.display()));
                return ExitCode::from(OWN_ERROR);
            }
        },
    };
    if let Some(doubt) = program::doubt(Path::new(program)) {
        say(&doubt);
    }
    let error = command.exec();
    say(&format!("{}: {error}", Path::new(program).display()));
    ExitCode::from(match error.kind() {
        ErrorKind::NotFound => NOT_FOUND,
        _ => NOT_EXECUTABLE,
    })
}

fn say(text: &str) {
    let _ = writeln!(io::stderr(), "dat-trace: {text}");
}

/// Makes the file of the trace, empty, and gives its absolute path, for processes with another
/// directory. Where each process has a file of its own, the processes make them.
fn prepare(file: &Path) -> io::Result<PathBuf> {
    let file = std::path::absolute(file)?;
    if file.to_string_lossy().contains("%p") {
        return Ok(file);
    }
    let mut options = OpenOptions::new();
    options.write(true);
    if fs::metadata(&file).is_ok_and(|kind| kind.file_type().is_fifo()) {
        // Waits for a reader, as a shell does.
        keep_open(options.open(&file)?)?;
        return Ok(file);
    }
    options
        .create(true)
        .mode(0o600)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
    let made = options.open(&file)?;
    if made.metadata()?.is_file() {
        made.set_len(0)?;
    }
    Ok(file)
}

/// Leaves a named pipe open for the program. The libraries open it for each line anew, and its reader would have
/// the end of the trace behind the first one.
fn keep_open(pipe: File) -> io::Result<()> {
    let pipe = pipe.into_raw_fd();
    // SAFETY: a descriptor of ours, which stays as long as this process and the program in its place.
    match unsafe { libc::fcntl(pipe, libc::F_SETFD, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
