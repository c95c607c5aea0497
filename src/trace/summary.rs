//! The table of all functions that a process has called.

use std::fmt::Write as _;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::time::Duration;

use super::output;
use crate::abi::common::{DAT_QUEUE_EMPTY, DAT_RETURN, DAT_SUCCESS, DAT_TIMEOUT_EXPIRED};
use crate::error::TYPE_MASK;
use crate::log_sink;

/// A function, and what its calls have come to. There is one for each exported symbol.
pub struct Function {
    name: &'static str,
    /// Calls that have begun.
    begun: AtomicU64,
    /// Calls that have returned.
    ended: AtomicU64,
    /// Those of them that have given an error other than that there was nothing yet.
    failed: AtomicU64,
    /// Those that have found nothing: an empty queue, or none until the time was over.
    empty: AtomicU64,
    /// Their time, and the longest of them, in nanoseconds.
    total: AtomicU64,
    longest: AtomicU64,
    /// Whether the function is in the list of those that were called.
    listed: AtomicBool,
    /// The next one in the list.
    next: AtomicPtr<Function>,
}

/// The functions that were called; the last one first.
static FIRST: AtomicPtr<Function> = AtomicPtr::new(null_mut());

/// A forked child has made none of the calls of its parent.
pub static FORGET: fn() = || {
    for function in functions() {
        for counter in [
            &function.begun,
            &function.ended,
            &function.failed,
            &function.empty,
            &function.total,
            &function.longest,
        ] {
            counter.store(0, Ordering::Relaxed);
        }
    }
    output::forget();
};

impl Function {
    /// A function that was not called yet.
    pub const fn new(name: &'static str) -> Function {
        Function {
            name,
            begun: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            empty: AtomicU64::new(0),
            total: AtomicU64::new(0),
            longest: AtomicU64::new(0),
            listed: AtomicBool::new(false),
            next: AtomicPtr::new(null_mut()),
        }
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// A call begins.
    pub(super) fn enter(&'static self) {
        self.begun.fetch_add(1, Ordering::Relaxed);
        if self.listed.swap(true, Ordering::Relaxed) {
            return;
        }
        let mut first = FIRST.load(Ordering::Relaxed);
        let this = std::ptr::from_ref(self).cast_mut();
        loop {
            self.next.store(first, Ordering::Relaxed);
            // Release: whoever finds this one finds the one after it.
            match FIRST.compare_exchange_weak(first, this, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(other) => first = other,
            }
        }
    }

    /// A call has returned.
    pub(super) fn leave(&self, took: Duration, code: DAT_RETURN) {
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.ended.fetch_add(1, Ordering::Relaxed);
        let kind = match code & TYPE_MASK {
            DAT_SUCCESS => None,
            DAT_QUEUE_EMPTY | DAT_TIMEOUT_EXPIRED => Some(&self.empty),
            _ => Some(&self.failed),
        };
        if let Some(kind) = kind {
            kind.fetch_add(1, Ordering::Relaxed);
        }
        self.total.fetch_add(took, Ordering::Relaxed);
        self.longest.fetch_max(took, Ordering::Relaxed);
    }
}

/// The functions that were called.
fn functions() -> impl Iterator<Item = &'static Function> {
    // SAFETY: null, or a function that is never freed.
    let first = unsafe { FIRST.load(Ordering::Acquire).as_ref() };
    std::iter::successors(first, |function| {
        // SAFETY: as above.
        unsafe { function.next.load(Ordering::Relaxed).as_ref() }
    })
}

/// Writes the table, if there was a call.
pub fn write() {
    if let Some(table) = table() {
        output::write(&table);
    }
}

/// The table: the functions that have taken most of the time first.
fn table() -> Option<String> {
    let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let mut called: Vec<&Function> = functions().filter(|f| of(&f.begun) > 0).collect();
    if called.is_empty() {
        return None;
    }
    called.sort_by_key(|f| (std::cmp::Reverse(of(&f.total)), f.name));
    let all: u64 = called.iter().map(|f| of(&f.total)).sum();
    let program = std::env::current_exe().unwrap_or_default();
    let mut text = format!(
        "{} DAT calls of process {}, {}:\n{:>7} {:>12} {:>12} {:>12} {:>10} {:>8} {:>10}  function",
        log_sink::stamp(),
        std::process::id(),
        program.display(),
        "% time",
        "seconds",
        "us/call",
        "max us",
        "calls",
        "errors",
        "empty"
    );
    for function in &called {
        let (begun, ended) = (of(&function.begun), of(&function.ended));
        let total = of(&function.total);
        let _ = write!(
            text,
            "\n{:>7.2} {:>12.6} {:>12.3} {:>12.3} {:>10} {:>8} {:>10}  {}",
            100.0 * total as f64 / all.max(1) as f64,
            total as f64 / 1e9,
            total as f64 / 1e3 / ended.max(1) as f64,
            of(&function.longest) as f64 / 1e3,
            begun,
            of(&function.failed),
            of(&function.empty),
            function.name
        );
        if begun > ended {
            let _ = write!(text, " ({} not ended)", begun - ended);
        }
    }
    let lost = output::lost();
    if lost > 0 {
        let _ = write!(text, "\n{lost} lines of the trace could not be written");
    }
    Some(text)
}
