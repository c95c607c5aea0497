//! The trace of calls: with `DAT_TRACE=calls` each DAT call of the program is written as a line, with its
//! arguments, its result and how long it took, and at the exit of the process a table of all
//! functions; with `DAT_TRACE=summary` the table alone.
//!
//! A call is traced where its exported symbol looks for the provider of its handle, so that calls of
//! every provider are, with handles of every kind. Without a trace that costs nothing: exported
//! functions find the providers of handles in a table that is empty during a trace
//! ([`handle::divert`]), and only a call that finds none asks whether there is a trace.
//!
//! What is written for a call is made in two steps, [`begin`] and [`end`]. Between them, in the call,
//! the thread may be cancelled, which unwinds it without dropping anything: what is known of the call
//! is then found in [`THREAD`].

mod arguments;
mod events;
pub mod extension;
mod masks;
mod memory;
mod names;
mod output;
mod polls;
mod structures;
mod summary;
mod values;

pub use arguments::{Argument, Words};
pub use summary::Function;

use std::cell::RefCell;
use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::{Duration, Instant};

use crate::abi::common::{DAT_RETURN, DAT_SUCCESS, DAT_TIMEOUT_INFINITE};
use crate::any_stack::called_by_c;
use crate::error::{TYPE_MASK, Version};
use crate::{cancel, environment, handle, log_sink, process, reserve, strerror, thread_sanitizer};
use polls::Polls;

/// The values of [`STATE`].
const OFF: u8 = 0;
const SUMMARY: u8 = 1;
const CALLS: u8 = 2;

/// What is traced, as the environment says when the library is loaded.
static STATE: AtomicU8 = AtomicU8::new(OFF);

/// Whether there is a trace.
#[inline]
pub fn on() -> bool {
    STATE.load(Ordering::Relaxed) != OFF
}

/// Reads `DAT_TRACE`, and begins what that asks for.
fn start() {
    let Some(value) = environment::variable("DAT_TRACE") else {
        return;
    };
    let state = match value.to_str() {
        Some("" | "off") => OFF,
        Some("summary") => SUMMARY,
        Some("calls") => CALLS,
        _ => {
            let value = value.to_string_lossy();
            log_sink::to_standard_error(&format!(
                "libdat: DAT_TRACE={value}: not known, so nothing is traced; known are \"calls\", \
                 \"summary\" and \"off\"\n"
            ));
            OFF
        }
    };
    if state != OFF {
        output::open();
        process::in_child(&summary::FORGET);
        process::in_child(&BEGIN_ANEW);
        handle::divert();
        STATE.store(state, Ordering::Relaxed);
    }
}

extern "C" fn start_if_wanted() {
    let _ = catch_unwind(start);
}

extern "C" fn write_summary() {
    if on() {
        let _ = catch_unwind(summary::write);
    }
}

called_by_c! {
    at_load => start_if_wanted;
    at_exit => write_summary;
}

/// Called when the library is loaded, before there are handles and other threads.
#[used]
#[cfg_attr(
    all(target_os = "linux", not(miri)),
    unsafe(link_section = ".init_array")
)]
static AT_LOAD: extern "C" fn() = at_load;

/// Called when the process exits, after the program's own handlers of `atexit`.
#[used]
#[cfg_attr(
    all(target_os = "linux", not(miri)),
    unsafe(link_section = ".fini_array")
)]
static AT_EXIT: extern "C" fn() = at_exit;

/// Whether this process has written what it is.
static INTRODUCED: AtomicBool = AtomicBool::new(false);

static BEGIN_ANEW: fn() = || INTRODUCED.store(false, Ordering::Relaxed);

/// A call that has begun.
#[derive(Clone, Copy)]
pub struct Call {
    function: &'static Function,
    version: Version,
    began: Instant,
    /// What is known of the line; null if none is written.
    line: *mut Line,
}

/// The line of a call.
struct Line {
    function: &'static Function,
    /// When the call began, and the process and thread.
    head: String,
    /// The arguments as they are before the call.
    arguments: Vec<String>,
}

/// What a trace keeps for a thread.
struct Thread {
    /// The lines of the calls that the thread is in, from the outermost on: an agent that a call
    /// runs may make calls.
    lines: Vec<*mut Line>,
    polls: Polls,
}

thread_local! {
    static THREAD: RefCell<Thread> = const {
        RefCell::new(Thread {
            lines: Vec::new(),
            polls: Polls::new(),
        })
    };
}

impl Drop for Thread {
    /// The thread ends. It has not come back from calls in which it was cancelled.
    fn drop(&mut self) {
        let _ = catch_unwind(AssertUnwindSafe(|| {
            self.polls.end();
            for line in self.lines.drain(..) {
                // SAFETY: from `begin`; `end`, which was not called, would have taken it out.
                let line = unsafe { Box::from_raw(line) };
                output::write(&format!("{} = ? (the thread has ended)", line.text()));
            }
        }));
    }
}

/// Calls `f` with what is kept for this thread; not when the thread is about to end, nor when a signal
/// handler has interrupted another `f`.
fn with_thread<R>(f: impl FnOnce(&mut Thread) -> R) -> Option<R> {
    let called = THREAD.try_with(|thread| Some(f(&mut *thread.try_borrow_mut().ok()?)));
    called.ok().flatten()
}

/// The trace of a call before it is made.
///
/// The arguments are those of the call, in their order.
pub fn begin(function: &'static Function, version: Version, arguments: &[Argument]) -> Call {
    // Without a reference the linker may leave out the object file of the statics.
    std::hint::black_box((&AT_LOAD, &AT_EXIT));
    let _disabled = cancel::Disabled::begin();
    function.enter();
    let mut line = std::ptr::null_mut();
    // Without memory the call itself goes on; what the trace would allocate is not to be had.
    if STATE.load(Ordering::Relaxed) == CALLS {
        let made = thread_sanitizer::inside(|| {
            let has_memory = reserve::fill();
            catch_unwind(|| has_memory.then(|| Line::begin(function, version, arguments)))
        });
        line = made.ok().flatten().unwrap_or(line);
    }
    Call {
        function,
        version,
        began: Instant::now(),
        line,
    }
}

/// Whether the call may wait for ever, so that the program may be stuck in it.
fn may_be_stuck(function: &Function, arguments: &[Argument]) -> bool {
    let infinite = [u64::from(DAT_TIMEOUT_INFINITE), 0];
    let waits = ["dat_evd_wait", "dat_cno_wait"].contains(&function.name());
    let timeout = |argument: &Argument| argument.kind == "DAT_TIMEOUT";
    waits && arguments.iter().any(|a| timeout(a) && a.words == infinite)
}

impl Line {
    fn begin(function: &'static Function, version: Version, arguments: &[Argument]) -> *mut Line {
        if !INTRODUCED.swap(true, Ordering::Relaxed) {
            output::introduce(version);
        }
        let line = Line {
            function,
            head: log_sink::stamp(),
            arguments: (0..arguments.len())
                .map(|i| values::before(version, arguments, i))
                .collect(),
        };
        if may_be_stuck(function, arguments) {
            with_thread(|thread| thread.polls.end());
            output::write(&format!("{} ...", line.text()));
        }
        let line = Box::into_raw(Box::new(line));
        with_thread(|thread| thread.lines.push(line));
        line
    }

    fn text(&self) -> String {
        format!(
            "{} {}({})",
            self.head,
            self.function.name(),
            self.arguments.join(", ")
        )
    }
}

/// The trace of a call that has given `code`.
pub fn end(call: Call, code: DAT_RETURN, arguments: &[Argument]) {
    let took = call.began.elapsed();
    let _disabled = cancel::Disabled::begin();
    call.function.leave(took, code);
    if !call.line.is_null() {
        thread_sanitizer::inside(|| end_line(call, took, code, arguments));
    }
}

/// Writes the line of a call, which has one.
fn end_line(call: Call, took: Duration, code: DAT_RETURN, arguments: &[Argument]) {
    with_thread(|thread| thread.lines.retain(|line| *line != call.line));
    // SAFETY: from `begin`, whose value is used here alone, and taken out of the list of the thread.
    let mut line = unsafe { Box::from_raw(call.line) };
    let _ = catch_unwind(AssertUnwindSafe(|| {
        if polls::found_nothing(call.function.name(), arguments, code) {
            if with_thread(|thread| thread.polls.count()) == Some(false) {
                return;
            }
        } else {
            with_thread(|thread| thread.polls.end());
        }
        if code & TYPE_MASK == DAT_SUCCESS {
            for (i, text) in line.arguments.iter_mut().enumerate() {
                if let Some(filled) = values::after(call.version, arguments, i) {
                    *text = filled;
                }
            }
        }
        let mut text = line.text();
        let code = name_of(call.version, code);
        let _ = write!(text, " = {code}, {:.3} us", took.as_secs_f64() * 1e6);
        output::write(&text);
    }));
}

/// The name of a return code: its type, and its subtype in parentheses.
fn name_of(version: Version, code: DAT_RETURN) -> String {
    let Ok((kind, subtype)) = strerror::names(version, code) else {
        return format!("{code:#x}");
    };
    let (kind, subtype) = (kind.to_string_lossy(), subtype.to_string_lossy());
    match &*subtype {
        "" => kind.into_owned(),
        _ => format!("{kind} ({subtype})"),
    }
}
