//! Asynchronous errors: an EVD that receives those of an IA, and errors that are lost.

use super::{Evd, OVERFLOWED, Queued, State, Stream};
use crate::abi::common::*;
use crate::dapl::async_events::AsyncEvd;
use crate::dapl::ia::Child;
use crate::dapl::types::{Event, Handle};
use crate::delay;
use crate::device::Device;
use crate::handle::Held;

impl<D: Device> AsyncEvd for Evd<D> {
    fn handle(&self) -> Handle {
        self.base.handle()
    }

    fn queue(&self, event: Event) {
        if Evd::queue(self, event) == Queued::Full {
            self.state.lock().set(OVERFLOWED, true);
        }
    }

    fn report(&self) {
        delay::point("evd.queued");
        self.report_errors(self.state.lock());
    }

    fn detach(&self) {
        Evd::detach(self, Stream::Async);
    }

    fn destroy(&self) {
        Child::destroy(self);
    }
}

impl<D: Device> Evd<D> {
    /// Reports that an event was lost: in the async EVDs, or in the log if this is one of them.
    pub(super) fn report_overflow(&self) {
        delay::point("evd.overflow");
        let mut state = self.state.lock();
        if state.streams.has_async() {
            state.set(OVERFLOWED, true);
            self.report_errors(state);
            return;
        }
        drop(state);
        self.base.ia.async_event(
            DAT_ASYNC_ERROR_EVD_OVERFLOW,
            self.handle(),
            DAT_EVD_OVERFLOW_ERROR,
        );
    }

    /// Notifies the waiter or the CNO of asynchronous errors that were queued. The log has the first
    /// that is lost: every further one is lost too.
    fn report_errors(&self, mut state: Held<'_, State<D>>) {
        if state.has(OVERFLOWED) && !std::mem::replace(&mut state.loss_is_logged, true) {
            drop(state);
            log::error!("asynchronous EVD overflowed: error reports are lost");
        } else if !state.closed {
            self.notify(state);
        }
    }
}
