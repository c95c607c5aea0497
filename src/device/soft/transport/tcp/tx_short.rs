//! The short way of a post: a request of few bytes (of up to 16 KiB with checksums), when there is nothing else to send, is one FPDU,
//! which goes to the socket at once. Whatever is in the way of that is left to [`Tx::transmit`].

use crate::device::soft::engine::Watch;
use crate::device::soft::qp::state::QpState;
use crate::device::soft::qp::work_queue::Op;
use crate::device::soft::upcalls::Upcalls;
use crate::device::{SendOp, WrFlags};

use super::acknowledge::Acks;
use super::batch::{COPY_MAX, SendBatch};
use super::call_length::LONG_FRAME;
use super::close_reason::CloseReason;
use super::tx::{Tx, put_round, take_round};
use super::tx_frame::{Counting, Finishes, Transfer, transfer};

/// The longest payload that goes this way: such as is copied next to its header, and no more than is sent in
/// [a first call](super::call_length) without making the next one longer.
#[inline]
fn longest(crc: bool) -> u32 {
    match crc {
        true => LONG_FRAME as u32 / 2,
        false => COPY_MAX,
    }
}

impl Tx {
    /// Sends the request that was posted last, in this read-side section. True if all of it is sent,
    /// so that nothing is left to send; false if there is something for [`Tx::transmit`].
    ///
    /// # Errors
    /// It was sent in part, and there is no memory for the rest.
    #[inline]
    pub(super) fn transmit_short(
        &mut self,
        me: &mut QpState,
        watch: &Watch,
        acks: &mut Acks,
        crc: bool,
        up: &mut Upcalls,
    ) -> Result<bool, CloseReason> {
        let Some(whole) = self.short_request(me, acks, crc) else {
            return Ok(false);
        };
        let acknowledges = matches!(whole.1, SendOp::Send);
        let mut round = take_round();
        round.batch.clear();
        let sent = self.send_short(&mut round.batch, whole, acks.counting(me), watch, crc);
        put_round(round);
        let Some(number) = sent? else {
            return Ok(false);
        };
        if acknowledges {
            acks.reported();
        }
        acks.other_sent();
        acks.request_sent(number, me);
        me.retire(up);
        Ok(!self.has_pending())
    }

    /// The request that was posted last, if it is short and all before it is sent.
    #[inline]
    fn short_request<'a>(&self, me: &'a QpState, acks: &Acks, crc: bool) -> Option<Transfer<'a>> {
        let at = &self.at;
        let alone = at.request + 1 == me.sq.tail() && at.begun.is_none();
        let nothing_else = alone && self.responses.is_empty() && !self.has_pending();
        let goes_on = self.open && !self.closed && !self.stopped && me.close_at.is_none();
        if !nothing_else || !goes_on || !self.call.is_first() {
            return None;
        }
        let (request, sges) = me.sq.get(at.request)?;
        let Op::Transfer(op) = &request.op else {
            return None;
        };
        let is_simple = match op {
            SendOp::Send => true,
            // What is owed is a message of its own.
            SendOp::SendInvalidate { .. } | SendOp::RdmaWrite(_) => !acks.owes(),
            _ => false,
        };
        let waits = request.flags.contains(WrFlags::FENCE) && at.reads > 0;
        let longest = longest(crc).min(self.longest.of(op));
        (is_simple && !waits && request.len <= longest).then_some((request, op, sges))
    }

    /// Hands the FPDU of a short request to the socket; of one that it takes in part the rest is pending.
    /// The number of the request; `None` if nothing has happened.
    #[inline]
    fn send_short(
        &mut self,
        batch: &mut SendBatch,
        whole: Transfer<'_>,
        counting: Counting,
        watch: &Watch,
        crc: bool,
    ) -> Result<Option<u64>, CloseReason> {
        let mut after = self.at;
        let built = transfer(batch, &mut after, whole, counting, (self.longest, crc));
        let Ok(Finishes::Request(number)) = built else {
            return Ok(None);
        };
        let Ok(taken) = batch.send(watch) else {
            return Ok(None);
        };
        self.writes += 1;
        self.blocked = taken < batch.len();
        if self.blocked
            && batch
                .copy_range(taken, batch.len(), &mut self.pending)
                .is_err()
        {
            return Err(self.torn(Some(number)));
        }
        self.at = after;
        Ok(Some(number))
    }
}
