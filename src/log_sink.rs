//! The sink of log messages, a logger of the `log` crate, configured by `DAT_DBG_TYPE` and
//! `DAT_DBG_DEST`.
//!
//! Errors are always written to standard error. Other messages are written only if `DAT_DBG_TYPE`
//! has the bit of their target, to the destinations of `DAT_DBG_DEST`; then each line begins with the
//! time, the process and the thread. Nothing is ever written to standard output, which belongs to the
//! program (the original libraries write there).

use std::ffi::{CStr, CString, OsStr};
use std::os::fd::BorrowedFd;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use log::{Level, LevelFilter, Log, Metadata, Record};

use crate::cancel;
use crate::lock::ReentrantMutex;
use crate::process::{self, Across, AcrossEntry};
use crate::{environment, signals};

/// Target of messages about the static registry (`DAT_DBG_TYPE` 0x04).
pub const STATIC_REGISTRY: &str = "dat::static";
/// Target of messages about the dynamic registry (`DAT_DBG_TYPE` 0x08).
pub const DYNAMIC_REGISTRY: &str = "dat::dynamic";
/// Target of messages about calls that provider libraries make (`DAT_DBG_TYPE` 0x10).
pub const PROVIDER_API: &str = "dat::provider";
/// Target of messages about registry calls that programs make (`DAT_DBG_TYPE` 0x20).
pub const CONSUMER_API: &str = "dat::consumer";
/// Target of messages about the steps in which connections are made and ended (`DAT_DBG_TYPE`
/// 0x40).
pub const CONNECTIONS: &str = "dat::connections";

/// Bit of `DAT_DBG_TYPE`: errors, which are always written.
const ERRORS: u32 = 0x01;
/// Bit of `DAT_DBG_TYPE` for every target that has none of its own.
const GENERIC: u32 = 0x02;
/// What `DAT_DBG_TYPE` may have. Bit 0x80 belongs to the original library alone.
const TYPES: Known = Known {
    bits: 0xff,
    names: "0x01 errors, 0x02 general, 0x04 static registry, 0x08 dynamic registry, \
            0x10 calls of providers, 0x20 calls of programs, 0x40 connections, 0xff all",
};
/// What `DAT_DBG_DEST` may have.
const DESTINATIONS: Known = Known {
    bits: DEST_STDERR | DEST_SYSLOG,
    names: "0 nowhere, 1 standard error, 2 syslog",
};
/// Bit of `DAT_DBG_DEST`: standard error.
const DEST_STDERR: u32 = 1;
/// Bit of `DAT_DBG_DEST`: the system log.
const DEST_SYSLOG: u32 = 2;

/// The sink.
struct Sink {
    /// `DAT_DBG_TYPE`: the targets whose messages are written.
    types: u32,
    /// `DAT_DBG_DEST`: where messages are written.
    destination: u32,
}

impl Sink {
    fn wants(&self, metadata: &Metadata<'_>) -> bool {
        let bit = match metadata.target() {
            STATIC_REGISTRY => 0x04,
            DYNAMIC_REGISTRY => 0x08,
            PROVIDER_API => 0x10,
            CONSUMER_API => 0x20,
            CONNECTIONS => 0x40,
            _ => GENERIC,
        };
        metadata.level() == Level::Error || self.types & bit != 0
    }

    /// The line of a message. Someone who asks for more than errors wants to know what came after what,
    /// and who did it.
    fn line(&self, message: &std::fmt::Arguments<'_>) -> String {
        match self.types & !ERRORS {
            0 => format!("libdat: {message}"),
            _ => format!("libdat: {}: {message}", stamp()),
        }
    }

    /// Whether a message of this level goes to standard error, and to the system log.
    fn destinations(&self, level: Level) -> (bool, bool) {
        (
            level == Level::Error || self.destination & DEST_STDERR != 0,
            self.destination & DEST_SYSLOG != 0,
        )
    }
}

impl Log for Sink {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.wants(metadata)
    }

    fn log(&self, record: &Record<'_>) {
        if !self.wants(record.metadata()) {
            return;
        }
        // Among other functions `syslog` and `sigtimedwait` are points of cancellation.
        let _disabled = cancel::Disabled::begin();
        let (stderr, syslog) = self.destinations(record.level());
        let line = self.line(record.args());
        if stderr {
            // Errors are ignored: standard error may be closed (`eprintln!` would panic), a pipe
            // without a reader, or a file at its size limit.
            to_standard_error(&format!("{line}\n"));
        }
        if syslog {
            let text: Vec<u8> = line.into_bytes();
            let text = text.into_iter().filter(|&byte| byte != 0);
            if let Ok(text) = CString::new(text.collect::<Vec<u8>>()) {
                write_to_syslog(&text);
            }
        }
    }

    fn flush(&self) {}
}

/// Held while a message is written to the system log: the C library has a lock of its own there,
/// which a forked child would find locked for ever.
struct Syslog(ReentrantMutex<()>);

static SYSLOG: Syslog = Syslog(ReentrantMutex::new(()));
/// Whether this process cannot write to the system log.
static SYSLOG_IS_LOST: AtomicBool = AtomicBool::new(false);
static SYSLOG_ACROSS: AcrossEntry = AcrossEntry::innermost(&SYSLOG);

impl Across for Syslog {
    fn try_lock(&self) -> bool {
        self.0.try_lock().map(std::mem::forget).is_some()
    }

    unsafe fn unlock(&self) {
        // SAFETY: the caller's promise.
        unsafe { self.0.force_unlock() };
    }

    unsafe fn reset(&self) {
        // Held by a thread of the parent, so that messages of this process would wait for ever.
        SYSLOG_IS_LOST.store(true, Ordering::Relaxed);
    }
}

fn write_to_syslog(text: &CStr) {
    process::across(&SYSLOG_ACROSS);
    // A signal handler that forks must not wait for the thread that it has interrupted.
    let _blocked = signals::SignalsBlocked::all();
    if SYSLOG_IS_LOST.load(Ordering::Relaxed) {
        return;
    }
    let _locked = SYSLOG.0.lock();
    // SAFETY: the format takes one string, and gets one.
    unsafe {
        let priority = libc::LOG_USER | libc::LOG_DEBUG;
        libc::syslog(priority, c"%s".as_ptr(), text.as_ptr());
    }
}

/// Writes to standard error in one piece, so that lines of several threads do not mix. Whether all of it
/// is written.
pub fn to_standard_error(text: &str) -> bool {
    // Past the lock of std, which another thread may hold when this process is forked. The
    // system call is no point at which the thread is cancelled, unlike `write(2)`.
    // SAFETY: if standard error is closed the call fails.
    let stderr = unsafe { BorrowedFd::borrow_raw(libc::STDERR_FILENO) };
    let write = || rustix::io::write(stderr, text.as_bytes());
    let written = signals::suppressing(&[libc::SIGPIPE, libc::SIGXFSZ], write);
    written == Ok(text.len())
}

/// The local time minus that of Greenwich, in seconds.
static OFFSET: AtomicI64 = AtomicI64::new(0);

/// Seconds and microseconds since 1970.
fn now() -> (i64, u32) {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let since = since.unwrap_or_default();
    let seconds = i64::try_from(since.as_secs()).unwrap_or(0);
    (seconds, since.subsec_micros())
}

/// Finds the local time out. The C library has a lock for that, which a forked child may find locked
/// for ever; so this is done once, and [`stamp`] counts on.
pub fn set_offset() {
    // SAFETY: all zeros are a value of the structure of numbers and a pointer.
    let mut parts: libc::tm = unsafe { std::mem::zeroed() };
    let seconds = now().0 as _;
    // SAFETY: two locals.
    if !unsafe { libc::localtime_r(&seconds, &mut parts) }.is_null() {
        OFFSET.store(parts.tm_gmtoff as i64, Ordering::Relaxed);
    }
}

/// The local time, the process and the thread: what a line of a trace begins with.
pub fn stamp() -> String {
    let (seconds, micros) = now();
    let of_day = (seconds + OFFSET.load(Ordering::Relaxed)).rem_euclid(24 * 60 * 60);
    format!(
        "{:02}:{:02}:{:02}.{micros:06} {}/{}",
        of_day / 3600,
        of_day / 60 % 60,
        of_day % 60,
        std::process::id(),
        rustix::thread::gettid().as_raw_pid()
    )
}

/// The bits that a variable may have.
struct Known {
    bits: u32,
    /// Their names, for users.
    names: &'static str,
}

impl Known {
    /// What is wrong with a value of a variable, if there is something.
    fn complaint(&self, name: &str, text: &OsStr) -> Option<String> {
        let text = text.to_string_lossy();
        let Known { bits, names } = self;
        let (is_negative, radix, digits) = parts(text.trim());
        // A second sign would be read as well.
        let digits = Some(digits).filter(|digits| !digits.starts_with('+'));
        let value = digits.and_then(|digits| u32::from_str_radix(digits, radix).ok());
        match value.map(|value| signed(is_negative, value) & !bits) {
            Some(0) => None,
            // All bits that there are.
            Some(unknown) if unknown == !bits => None,
            Some(unknown) => Some(format!(
                "{name}={text}: the bits {unknown:#x} are not known; known are {names}"
            )),
            None => Some(format!("{name}={text}: not a number; known are {names}")),
        }
    }
}

/// What `strtol` with base 0 sees in a number: whether it is negative, its radix (decimal, `0x` hexadecimal or `0` octal)
/// and its digits.
fn parts(text: &str) -> (bool, u32, &str) {
    let (is_negative, text) = match text.strip_prefix('-') {
        Some(text) => (true, text),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    match text.strip_prefix("0x").or(text.strip_prefix("0X")) {
        Some(hex) => (is_negative, 16, hex),
        None if text.starts_with('0') => (is_negative, 8, text),
        None => (is_negative, 10, text),
    }
}

/// -1 is all bits.
fn signed(is_negative: bool, value: u32) -> u32 {
    if is_negative {
        value.wrapping_neg()
    } else {
        value
    }
}

/// A number as `strtol` with base 0 reads it. Text after the digits is ignored, and without digits the number is 0.
fn number(text: &str) -> u32 {
    let (is_negative, radix, digits) = parts(text.trim_start());
    let digits = digits.chars().map_while(|c| c.to_digit(radix));
    let value = digits.fold(0u32, |value, digit| {
        value.wrapping_mul(radix).wrapping_add(digit)
    });
    signed(is_negative, value)
}

/// The number in a variable, or `default` if it is not set or not valid text. What is wrong with the
/// value is added to `complaints`.
fn variable(name: &str, default: u32, known: &Known, complaints: &mut Vec<String>) -> u32 {
    let Some(value) = environment::variable(name) else {
        return default;
    };
    complaints.extend(known.complaint(name, &value));
    value.to_str().map_or(default, number)
}

/// Installs the sink, once; the environment is read then. If the program is a Rust program
/// that has installed a logger for this copy of the `log` crate, that logger is used.
pub fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let mut wrong = Vec::new();
        let sink = Sink {
            types: variable("DAT_DBG_TYPE", ERRORS, &TYPES, &mut wrong),
            destination: variable("DAT_DBG_DEST", DEST_STDERR, &DESTINATIONS, &mut wrong),
        };
        // With this a disabled message costs one load.
        let level = match sink.types & !ERRORS {
            0 => LevelFilter::Error,
            _ => {
                set_offset();
                LevelFilter::Trace
            }
        };
        if log::set_logger(Box::leak(Box::new(sink))).is_ok() {
            log::set_max_level(level);
        }
        for complaint in wrong {
            log::error!("{complaint}");
        }
    });
}

/// Writes the messages of panics to the log instead of printing them. The panic itself ends at the
/// boundary to C, where it becomes an error code.
pub fn report_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        std::panic::set_hook(Box::new(|info| log::error!("internal error: {info}")));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_as_strtol_reads_them() {
        for (text, value) in [
            ("", 0),
            ("12", 12),
            (" 0x1f", 31),
            ("0XfF", 255),
            ("010", 8),
            ("0", 0),
            ("5x", 5),
            ("09", 0),
            ("none", 0),
            ("4294967296", 0),
            ("-1", u32::MAX),
            (" -0x10", 16u32.wrapping_neg()),
            ("+7", 7),
            ("- 1", 0),
        ] {
            assert_eq!(number(text), value, "{text:?}");
        }
    }

    #[test]
    fn values_that_are_not_known_are_named() {
        let complaint = |text: &str| TYPES.complaint("DAT_DBG_TYPE", OsStr::new(text));
        for known in [
            "0",
            "1",
            "0x42",
            "0XFF",
            " 255 ",
            "0377",
            "0xffffffff",
            "-1",
        ] {
            assert_eq!(complaint(known), None, "{known}");
        }
        let said = complaint("0x142").unwrap();
        assert!(
            said.starts_with("DAT_DBG_TYPE=0x142: the bits 0x100 are not known; known are 0x01")
        );
        for wrong in ["", "all", "5x", "09", "-", "--1", "++1"] {
            let said = complaint(wrong).unwrap();
            let start = format!("DAT_DBG_TYPE={wrong}: not a number; known are 0x01 errors");
            assert!(said.starts_with(&start), "{said}");
        }
        let complaint = |text: &str| DESTINATIONS.complaint("DAT_DBG_DEST", OsStr::new(text));
        assert_eq!(complaint("3"), None);
        assert!(complaint("4").unwrap().contains("the bits 0x4"));
    }

    #[test]
    fn lines_have_time_and_thread_if_more_than_errors_is_asked_for() {
        let line = |types| {
            let sink = Sink {
                types,
                destination: 0,
            };
            sink.line(&format_args!("text"))
        };
        assert_eq!(line(0), "libdat: text");
        assert_eq!(line(ERRORS), "libdat: text");
        let (process, thread) = (std::process::id(), rustix::thread::gettid().as_raw_pid());
        let end = format!(" {process}/{thread}: text");
        let stamped = line(0x02);
        let time = stamped
            .strip_prefix("libdat: ")
            .and_then(|l| l.strip_suffix(&end));
        let time = time.expect("the form of a line");
        assert_eq!(time.len(), "12:34:56.123456".len(), "{stamped}");
    }

    #[test]
    fn masks_select_targets_and_errors_always_pass() {
        let wants = |types, target, level| {
            Sink {
                types,
                destination: 0,
            }
            .wants(&Metadata::builder().target(target).level(level).build())
        };
        for (target, bit) in [
            ("dat_core::anything", 0x02),
            (STATIC_REGISTRY, 0x04),
            (DYNAMIC_REGISTRY, 0x08),
            (PROVIDER_API, 0x10),
            (CONSUMER_API, 0x20),
            (CONNECTIONS, 0x40),
        ] {
            assert!(wants(bit, target, Level::Debug));
            assert!(wants(0xff, target, Level::Info));
            assert!(!wants(0xff & !bit, target, Level::Warn));
            assert!(wants(0, target, Level::Error));
        }
    }

    #[test]
    fn errors_always_reach_standard_error() {
        let sink = |destination| Sink {
            types: 0xff,
            destination,
        };
        assert_eq!(sink(0).destinations(Level::Debug), (false, false));
        assert_eq!(sink(1).destinations(Level::Debug), (true, false));
        assert_eq!(sink(2).destinations(Level::Debug), (false, true));
        assert_eq!(sink(2).destinations(Level::Error), (true, true));
        assert_eq!(sink(0).destinations(Level::Error), (true, false));
    }
}
