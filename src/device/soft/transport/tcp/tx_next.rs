//! Which request is next: binds are executed, transfers wait for their turn.

use crate::device::soft::qp::state::QpState;
use crate::device::soft::qp::work_queue::Op;
use crate::device::soft::upcalls::Upcalls;
use crate::device::{WcStatus, WrFlags};
use crate::handle::Guard;

use super::acknowledge::Acks;
use super::close_reason::CloseReason;
use super::tx::Tx;
use super::tx_frame::{Position, Transfer};

impl Tx {
    /// Binds are for us alone: one that is next is executed at once. It waits for all before it
    /// to complete, so that one which is flushed has changed nothing.
    pub(super) fn execute_binds(
        &mut self,
        me: &mut QpState,
        acks: &mut Acks,
        guard: &Guard,
        up: &mut Upcalls,
    ) -> Result<(), CloseReason> {
        // A bind at the front is the next request to begin: those before it are done.
        while me.close_at != Some(self.at.request)
            && let Some((request, _)) = me.sq.front()
            && matches!(request.op, Op::Bind { .. })
        {
            let number = self.at.request;
            debug_assert_eq!(number, me.sq.head(), "no bind waits behind its turn");
            let status = me.bind(guard);
            if status != WcStatus::Success {
                return Err(CloseReason::Request(number, status));
            }
            if let Some(request) = me.sq.get_mut(number) {
                request.done = true;
            }
            self.at.request += 1;
            acks.bound();
            me.retire(up);
        }
        Ok(())
    }

    /// The transfer to continue, if it may be sent yet: not before a bind is executed.
    pub(super) fn next_request<'a>(
        &self,
        at: &Position,
        me: &'a QpState,
    ) -> Result<Option<Transfer<'a>>, CloseReason> {
        if me.close_at == Some(at.request) {
            return Ok(None);
        }
        let Some((request, sges)) = me.sq.get(at.request) else {
            return Ok(None);
        };
        let Op::Transfer(op) = &request.op else {
            return Ok(None);
        };
        if at.begun.is_none() {
            if self.stopped {
                return Ok(None);
            }
            let is_read = op.fetches();
            if is_read && me.ord == 0 {
                return Err(CloseReason::Request(at.request, WcStatus::LocalQpOperation));
            }
            if is_read && at.reads >= me.ord
                || request.flags.contains(WrFlags::FENCE) && at.reads > 0
            {
                return Ok(None);
            }
        }
        Ok(Some((request, op, sges)))
    }
}
