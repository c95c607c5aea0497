//! Polls that find nothing: a program that polls makes millions of them. The first of a row is written;
//! the others are counted, and their number is written when the thread makes another call or a second
//! is over.

use std::time::{Duration, Instant};

use super::arguments::Argument;
use super::output;
use crate::abi::common::{DAT_QUEUE_EMPTY, DAT_RETURN, DAT_TIMEOUT_EXPIRED};
use crate::error::TYPE_MASK;
use crate::log_sink;

/// The polls of a thread that have found nothing since its last call of another kind.
pub struct Polls(Option<Row>);

struct Row {
    /// How many are not written.
    count: u64,
    /// When the last line was written.
    since: Instant,
}

/// Whether a call was a poll that has found nothing: of an EVD, or a wait without time.
pub fn found_nothing(function: &str, arguments: &[Argument], code: DAT_RETURN) -> bool {
    match function {
        "dat_evd_dequeue" => code & TYPE_MASK == DAT_QUEUE_EMPTY,
        "dat_evd_wait" | "dat_cno_wait" => {
            let timeout = arguments.iter().find(|a| a.kind == "DAT_TIMEOUT");
            code & TYPE_MASK == DAT_TIMEOUT_EXPIRED && timeout.is_some_and(|a| a.words[0] == 0)
        }
        _ => false,
    }
}

impl Polls {
    /// None.
    pub const fn new() -> Polls {
        Polls(None)
    }

    /// Takes note of a poll that has found nothing. Whether it is the first of a row, which is written.
    pub fn count(&mut self) -> bool {
        const INTERVAL: Duration = Duration::from_secs(1);
        let Some(row) = &mut self.0 else {
            self.0 = Some(Row {
                count: 0,
                since: Instant::now(),
            });
            return true;
        };
        row.count += 1;
        if row.since.elapsed() >= INTERVAL {
            row.write();
        }
        false
    }

    /// The row is over: writes how many more there were.
    pub fn end(&mut self) {
        if let Some(mut row) = self.0.take() {
            row.write();
        }
    }
}

impl Row {
    fn write(&mut self) {
        if self.count > 0 {
            output::write(&format!(
                "{} {} more polls that found nothing, in {:.6} s",
                log_sink::stamp(),
                self.count,
                self.since.elapsed().as_secs_f64()
            ));
        }
        self.count = 0;
        self.since = Instant::now();
    }
}
