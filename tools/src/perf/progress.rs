//! What is being measured at the moment, for people who wait: one line of standard error, only if that is a
//! terminal. It is gone before anything else is printed.

use std::io::{self, IsTerminal, Write};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::plan::Item;

/// Time between two lines. What takes less has none.
const STEP: Duration = Duration::from_secs(1);

/// Shows what is being measured.
pub struct Progress(Option<Shown>);

/// The thread that shows the line. It sleeps but for an instant in each second.
struct Shown {
    steps: Sender<Step>,
    thread: JoinHandle<()>,
}

enum Step {
    /// A measurement begins: its description.
    Begin(String),
    /// It will take about so long, from now on.
    Expect(Duration),
    /// It has ended: the sender is answered when the line is gone.
    End(Sender<()>),
}

impl Progress {
    /// Shows nothing unless standard error is a terminal.
    pub fn new() -> Progress {
        Progress(io::stderr().is_terminal().then(|| {
            let (steps, received) = mpsc::channel();
            let thread = thread::spawn(move || show(&received, &mut io::stderr()));
            Shown { steps, thread }
        }))
    }

    fn send(&self, step: impl FnOnce() -> Step) {
        if let Some(shown) = &self.0 {
            let _ = shown.steps.send(step());
        }
    }

    /// The measurement `index`, from 1, of `all` begins.
    pub fn begin(&self, item: &Item, index: usize, all: usize) {
        let (test, op, size) = (item.test.name(), item.op.name(), item.size);
        self.send(|| Step::Begin(format!("{index} of {all}: {test} {op} {size}")));
    }

    /// The measurement will take so long.
    pub fn expect(&self, time: Duration) {
        self.send(|| Step::Expect(time));
    }

    /// The measurement has ended: the line is gone when this returns.
    pub fn end(&self) {
        if self.0.is_some() {
            let (done, gone) = mpsc::channel();
            self.send(|| Step::End(done));
            let _ = gone.recv();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.end();
        if let Some(Shown { steps, thread }) = self.0.take() {
            drop(steps);
            let _ = thread.join();
        }
    }
}

/// The thread: shows lines until there is nobody to send steps.
fn show(steps: &mpsc::Receiver<Step>, out: &mut impl Write) {
    let mut now: Option<(String, Instant)> = None;
    let mut expected = None;
    let mut shown = false;
    loop {
        let step = match now {
            Some(_) => steps.recv_timeout(STEP),
            None => steps.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match step {
            Ok(Step::Begin(text)) => {
                now = Some((text, Instant::now()));
                expected = None;
            }
            Ok(Step::Expect(time)) => expected = Some((Instant::now(), time)),
            Ok(Step::End(done)) => {
                if std::mem::take(&mut shown) {
                    let _ = write!(out, "\r\x1b[K").and_then(|()| out.flush());
                }
                now = None;
                let _ = done.send(());
            }
            Err(RecvTimeoutError::Timeout) => {
                if let Some((text, begun)) = &now {
                    let line = line(
                        text,
                        begun.elapsed(),
                        expected.map(|(at, time)| (at.elapsed(), time)),
                    );
                    let _ = write!(out, "\r\x1b[K{line}").and_then(|()| out.flush());
                    shown = true;
                }
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// The line after this time, of which the second pair says how much is that of the measurement itself, and
/// how much is expected.
fn line(text: &str, time: Duration, expected: Option<(Duration, Duration)>) -> String {
    match expected {
        Some((time, all)) => {
            format!(
                "{text}: {} of about {} s",
                time.as_secs(),
                all.as_secs().max(1)
            )
        }
        None => format!("{text}: warming up, {} s", time.as_secs()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_for_people() {
        let seconds = Duration::from_secs;
        assert_eq!(
            line("1 of 9: a", seconds(2), None),
            "1 of 9: a: warming up, 2 s"
        );
        assert_eq!(
            line("1 of 9: a", seconds(9), Some((seconds(3), seconds(20)))),
            "1 of 9: a: 3 of about 20 s"
        );
    }
}
