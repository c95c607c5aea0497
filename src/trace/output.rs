//! Where a trace is written: standard error, or the file of `DAT_TRACE_FILE`.

use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};

use crate::error::Version;
use crate::{environment, log_sink, signals};

/// The file, an absolute path; none for standard error. `%p` in it stands for the number of the
/// process. Set when the library is loaded.
static FILE: OnceLock<Option<PathBuf>> = OnceLock::new();

/// Lines of this process that could not be written.
static LOST: AtomicU64 = AtomicU64::new(0);

/// Reads `DAT_TRACE_FILE`.
pub fn open() {
    let file = environment::variable("DAT_TRACE_FILE").filter(|file| !file.is_empty());
    // The program may change its directory.
    let file = file.map(|file| std::path::absolute(&file).unwrap_or_else(|_| file.into()));
    let _ = FILE.set(file);
    log_sink::set_offset();
}

/// Writes which library and program the trace is of.
pub fn introduce(version: Version) {
    let version = match version {
        Version::V1 => "1.2",
        Version::V2 => "2.0",
    };
    let program = std::env::current_exe().unwrap_or_default();
    write(&format!(
        "{} DAT {version} by libdat {}, program {}",
        log_sink::stamp(),
        env!("CARGO_PKG_VERSION"),
        program.display()
    ));
}

/// Lines of this process that could not be written.
pub fn lost() -> u64 {
    LOST.load(Ordering::Relaxed)
}

/// A forked child has lost none.
pub fn forget() {
    LOST.store(0, Ordering::Relaxed);
}

/// Writes a line, or several, in one piece: the lines of threads and processes do not mix.
pub fn write(text: &str) {
    let line = format!("{text}\n");
    let whole = match FILE.get().and_then(Option::as_deref) {
        None => log_sink::to_standard_error(&line),
        Some(file) => append(&of_process(file), line.as_bytes()),
    };
    if !whole {
        LOST.fetch_add(1, Ordering::Relaxed);
    }
}

/// The file of this process.
fn of_process(file: &Path) -> PathBuf {
    let id = std::process::id().to_string();
    let (mut name, mut rest) = (Vec::new(), file.as_os_str().as_bytes());
    while let Some(at) = rest.windows(2).position(|pair| pair == b"%p") {
        name.extend_from_slice(&rest[..at]);
        name.extend_from_slice(id.as_bytes());
        rest = &rest[at + 2..];
    }
    name.extend_from_slice(rest);
    OsString::from_vec(name).into()
}

/// How long a line waits for the reader of a pipe that is full.
const ROOM: Duration = Duration::from_secs(2);

/// Appends to a file. Whether the whole line is there. The file is not kept open: a program may close
/// all descriptors, and give the number of this one to a connection of its own.
fn append(file: &Path, line: &[u8]) -> bool {
    // Without NONBLOCK the program would wait for the reader of a named pipe, for ever if there is none.
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::NONBLOCK;
    let flags = flags | OFlags::CLOEXEC | OFlags::NOCTTY;
    let mode = Mode::from_raw_mode(0o600);
    let written = retry_on_intr(|| rustix::fs::open(file, flags, mode)).and_then(|file| {
        let write = || write_whole(&file, line);
        signals::suppressing(&[libc::SIGPIPE, libc::SIGXFSZ], write)
    });
    let Err(why) = written else {
        return true;
    };
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        let file = file.display();
        let why = match why {
            Errno::NXIO => "nobody reads this pipe".to_string(),
            Errno::AGAIN => "its reader takes nothing".to_string(),
            other => other.to_string(),
        };
        log_sink::to_standard_error(&format!(
            "libdat: the trace cannot be written to {file} (DAT_TRACE_FILE): {why}\n"
        ));
    }
    false
}

/// Writes a line to a file that does not block.
fn write_whole(file: &OwnedFd, mut line: &[u8]) -> Result<(), Errno> {
    /// A line has waited for the reader of a full pipe in vain, and none was written since. The next ones
    /// do not wait: a reader that has stopped holds a program up once.
    static READER_STOPPED: AtomicBool = AtomicBool::new(false);
    let mut until = None;
    while !line.is_empty() {
        match retry_on_intr(|| rustix::io::write(file, line)) {
            Ok(0) => return Err(Errno::NOSPC),
            Ok(len) => line = &line[len..],
            Err(Errno::AGAIN) if !READER_STOPPED.load(Ordering::Relaxed) => {
                let until = *until.get_or_insert_with(|| Instant::now() + ROOM);
                if !has_room(file, until)? {
                    READER_STOPPED.store(true, Ordering::Relaxed);
                }
            }
            Err(error) => return Err(error),
        }
    }
    READER_STOPPED.store(false, Ordering::Relaxed);
    Ok(())
}

/// Waits until a file takes more, or nobody takes that any longer. False if neither happens in time.
fn has_room(file: &OwnedFd, until: Instant) -> Result<bool, Errno> {
    let ready = retry_on_intr(|| {
        let left = until.saturating_duration_since(Instant::now());
        let left = left.try_into().unwrap_or_default();
        let mut files = [PollFd::from_borrowed_fd(file.as_fd(), PollFlags::OUT)];
        rustix::event::poll(&mut files, Some(&left))
    });
    ready.map(|files| files > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_is_put_into_the_name() {
        let id = std::process::id();
        assert_eq!(of_process(Path::new("/a/b")), Path::new("/a/b"));
        assert_eq!(
            of_process(Path::new("/a%p/%p%")),
            PathBuf::from(format!("/a{id}/{id}%"))
        );
    }
}
