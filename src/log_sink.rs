//! The sink of log messages, a logger of the `log` crate, configured by `DAT_DBG_TYPE` and
//! `DAT_DBG_DEST`.
//!
//! Errors are always written to standard error. Other messages are written only if `DAT_DBG_TYPE`
//! has the bit of their target, to the destinations of `DAT_DBG_DEST`. Nothing is ever written to
//! standard output, which belongs to the program (the original libraries write there).

use std::ffi::{CStr, CString};
use std::os::fd::BorrowedFd;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

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

/// Bit of `DAT_DBG_TYPE` for every target that has none of its own.
const GENERIC: u32 = 0x02;
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
        if stderr {
            // One write, so that lines of several threads do not mix. Errors are ignored: standard
            // error may be closed (`eprintln!` would panic), a pipe without a reader, or a file
            // at its size limit.
            let line = format!("libdat: {}\n", record.args());
            // Past the lock of std, which another thread may hold when this process is forked. The
            // system call is no point at which the thread is cancelled, unlike `write(2)`.
            // SAFETY: if standard error is closed the call fails.
            let stderr = unsafe { BorrowedFd::borrow_raw(libc::STDERR_FILENO) };
            let write = || rustix::io::write(stderr, line.as_bytes());
            let _ = signals::suppressing(&[libc::SIGPIPE, libc::SIGXFSZ], write);
        }
        if syslog {
            let text: Vec<u8> = format!("libdat: {}", record.args())
                .into_bytes()
                .into_iter()
                .filter(|&byte| byte != 0)
                .collect();
            if let Ok(text) = CString::new(text) {
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
static SYSLOG_ACROSS: AcrossEntry = AcrossEntry::new(&SYSLOG);

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

/// A number as `strtol` with base 0 reads it: decimal, `0x` hexadecimal or `0` octal. Text after
/// the digits is ignored, and without digits the number is 0.
fn number(text: &str) -> u32 {
    let text = text.trim_start();
    let (radix, digits) = if let Some(hex) = text.strip_prefix("0x").or(text.strip_prefix("0X")) {
        (16, hex)
    } else if text.starts_with('0') {
        (8, text)
    } else {
        (10, text)
    };
    digits
        .chars()
        .map_while(|c| c.to_digit(radix))
        .fold(0u32, |value, digit| {
            value.wrapping_mul(radix).wrapping_add(digit)
        })
}

/// The number in a variable, or `default` if it is not set or not valid text.
fn variable(name: &str, default: u32) -> u32 {
    let text = environment::variable(name).and_then(|value| value.into_string().ok());
    text.map_or(default, |text| number(&text))
}

/// Installs the sink, once; the environment is read then. If the program is a Rust program
/// that has installed a logger for this copy of the `log` crate, that logger is used.
pub fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let sink = Sink {
            types: variable("DAT_DBG_TYPE", 1),
            destination: variable("DAT_DBG_DEST", DEST_STDERR),
        };
        // With this a disabled message costs one load.
        let level = match sink.types & !1 {
            0 => LevelFilter::Error,
            _ => LevelFilter::Trace,
        };
        if log::set_logger(Box::leak(Box::new(sink))).is_ok() {
            log::set_max_level(level);
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
        ] {
            assert_eq!(number(text), value, "{text:?}");
        }
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
