//! What arrives of Atomic Operations and Immediate Data.
//!
//! An atomic operation of the peer is executed once, when its request is taken: then everything before
//! it is in memory, and its response, of which the result is a part, is built as often as it takes.

use super::close_reason::{CloseReason, wire_fault};
use super::conn::TcpConn;
use super::rx_segment::Taken;
use super::stash::{Purpose, is_supplied};
use super::tx_frame::{Answer, sink};
use crate::device::soft::iwarp::extensions::{AtomicRequest, AtomicResponse, Immediate};
use crate::device::soft::iwarp::wire::WireError;
use crate::device::soft::mem::{atomic, key_table};
use crate::device::soft::qp::deliver;
use crate::device::soft::qp::state::QpState;
use crate::device::soft::qp::work_queue::Op;
use crate::device::soft::upcalls::Upcalls;
use crate::device::{ATOMIC_LEN, Access, SendOp, WcStatus};
use crate::handle::Guard;

fn violation(error: WireError) -> CloseReason {
    CloseReason::Protocol(error, None)
}

impl TcpConn {
    /// The end of an RDMA write with immediate data, which is for the oldest receive.
    #[inline(never)]
    pub(super) fn immediate(
        &mut self,
        solicited: bool,
        fpdu: &[u8],
        payload: &[u8],
        me: &mut QpState,
        guard: &Guard,
        up: &mut Upcalls,
    ) -> Result<Taken, CloseReason> {
        let data = Immediate::parse(payload).map_err(violation)?;
        let sequence = &mut self.rx.sequence;
        sequence.end_write(data.written).map_err(violation)?;
        if me.receiving && self.rx.stash.is_empty() && is_supplied(me, up)? {
            self.answer_reads(me, guard, up)?;
            let delivered = deliver_immediate(data, solicited, me, up);
            self.request_arrived(true, delivered)?;
            return Ok(Taken::Whole);
        }
        let stashed = self.stash(Purpose::Immediate { data, solicited }, fpdu, &[]);
        self.request_arrived(true, stashed)?;
        Ok(Taken::Yes)
    }

    /// An atomic operation of the peer, which waits behind a message if it `waits`.
    #[inline(never)]
    #[allow(clippy::too_many_arguments)]
    pub(super) fn atomic_request(
        &mut self,
        waits: bool,
        fpdu: &[u8],
        payload: &[u8],
        me: &mut QpState,
        guard: &Guard,
        up: &mut Upcalls,
    ) -> Result<(), CloseReason> {
        let request = AtomicRequest::parse(payload).map_err(violation)?;
        self.admit_read()?;
        let used = if waits {
            self.stash(Purpose::Atomic(request), fpdu, &[])
        } else {
            self.answer_reads(me, guard, up)?;
            self.execute_atomic(request, me, guard)
        };
        self.request_arrived(true, used)
    }

    /// Executes an atomic operation, and queues its response.
    ///
    /// # Errors
    /// Why the peer may not have it executed; nothing has changed then.
    pub(super) fn execute_atomic(
        &mut self,
        request: AtomicRequest,
        me: &QpState,
        guard: &Guard,
    ) -> Result<(), CloseReason> {
        let AtomicRequest {
            identifier,
            word,
            op,
        } = request;
        let (len, need) = (u64::from(ATOMIC_LEN), Access::REMOTE_ATOMIC);
        if word.addr.checked_add(len).is_none() {
            return Err(violation(WireError::RDMAP_TO_WRAP));
        }
        key_table::resolve(word.rkey, me.id.scope(), word.addr, len, need, guard)
            .map_err(|fault| violation(wire_fault(fault)))?;
        let reserved = self.tx.responses.try_reserve(1);
        reserved.map_err(|_| CloseReason::NoMemory)?;
        let before = atomic::execute(op, word, me.id.scope(), guard).map_err(|status| {
            violation(match status {
                WcStatus::RemoteOperation => WireError::RDMAP_OPERATION,
                _ => WireError::RDMAP_ACCESS,
            })
        })?;
        let response = AtomicResponse { identifier, before };
        self.tx.responses.push_back(Answer::Atomic(response));
        Ok(())
    }

    /// The answer to our oldest request that has none, if that is an atomic operation.
    #[inline(never)]
    pub(super) fn atomic_response(
        &mut self,
        payload: &[u8],
        me: &mut QpState,
        guard: &Guard,
        up: &mut Upcalls,
    ) -> Result<(), CloseReason> {
        let unasked = || violation(WireError::DDP_NO_BUFFER);
        let (number, _) = *self.tx.reads.front().ok_or_else(unasked)?;
        let (request, sges) = me.sq.get(number).ok_or_else(unasked)?;
        let is_atomic = matches!(request.op, Op::Transfer(SendOp::Atomic { .. }));
        let before = match AtomicResponse::parse(payload) {
            Ok(response) if is_atomic && response.identifier == sink(number) => response.before,
            _ => {
                let error = WireError::RDMAP_STREAM;
                return Err(CloseReason::Response(number, error, None));
            }
        };
        let failed = || CloseReason::Request(number, WcStatus::LocalProtection);
        key_table::check_all(sges, me.id.pd, Access::LOCAL_WRITE, guard).map_err(|_| failed())?;
        // SAFETY: registered, for as long as the section lasts, and long enough since the request was
        // posted.
        unsafe { atomic::store_result(before, sges) }.map_err(|_| failed())?;
        self.finish_read(number, me, up);
        Ok(())
    }
}

/// Completes the oldest receive with immediate data.
pub(super) fn deliver_immediate(
    data: Immediate,
    solicited: bool,
    me: &mut QpState,
    up: &mut Upcalls,
) -> Result<(), CloseReason> {
    deliver::deliver_immediate(data.imm, data.written, solicited, me, up)
        .map_err(|_| violation(WireError::DDP_NO_BUFFER))
}
