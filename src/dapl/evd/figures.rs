//! What readers of the process see of an EVD ([`crate::figures`]).

use super::{Evd, WAITER};
use crate::abi::common::*;
use crate::dapl::counters::names;
use crate::dapl::figures::write_counters;
use crate::device::{CompletionQueue, Device};
use crate::figures::Json;

/// The kinds of events, as the flags of an EVD name them.
const KINDS: [(DAT_EVD_FLAGS, &str); 6] = [
    (DAT_EVD_SOFTWARE_FLAG, "SOFTWARE"),
    (DAT_EVD_CR_FLAG, "CR"),
    (DAT_EVD_DTO_FLAG, "DTO"),
    (DAT_EVD_CONNECTION_FLAG, "CONNECTION"),
    (DAT_EVD_RMR_BIND_FLAG, "RMR_BIND"),
    (DAT_EVD_ASYNC_FLAG, "ASYNC"),
];

impl<D: Device> Evd<D> {
    /// See [`Child::figures`](crate::dapl::ia::Child::figures).
    pub(super) fn write_figures(&self, json: &mut Json) {
        let kinds = KINDS.iter().filter(|(flag, _)| self.flags & flag != 0);
        let kinds: Vec<&str> = kinds.map(|(_, name)| *name).collect();
        json.text("kinds", kinds.join("|"));
        // A device that does not report how many completions are queued leaves the number open.
        let completions = match &self.cq {
            Some(cq) => cq.queued(),
            None => Some(0),
        };
        let state = self.state.lock();
        let (queued, length, waiter) = (state.queue.len(), state.qlen, state.has(WAITER));
        drop(state);
        json.number_or_null(
            "events",
            completions.map(|completions| u64::from(completions) + queued as u64),
        );
        json.number("length", length as u64);
        json.boolean("waiting", waiter);
        write_counters(self.counters(), &names::EVD, json);
    }
}
