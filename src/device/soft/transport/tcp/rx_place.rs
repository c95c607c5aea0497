//! Where the payload of a segment goes: to the oldest receive, to the memory that an RDMA write
//! names, or to the sink of our oldest read.

use super::close_reason::{CloseReason, wire_fault};
use super::conn::TcpConn;
use super::rx_direct::Payload;
use super::tx_frame::sink;
use crate::device::soft::iwarp::wire::WireError;
use crate::device::soft::mem::copy::{self, Cursor};
use crate::device::soft::mem::key_table::{self, Fault};
use crate::device::soft::qp::deliver::{self, DeliveryError, Placement};
use crate::device::soft::qp::state::QpState;
use crate::device::soft::qp::work_queue::Op;
use crate::device::soft::upcalls::Upcalls;
use crate::device::{Access, SendOp, WcStatus};
use crate::handle::Guard;

impl TcpConn {
    /// A segment of the answer to our oldest read.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn read_response(
        &mut self,
        stag: u32,
        to: u64,
        last: bool,
        payload: Payload<'_>,
        me: &mut QpState,
        guard: &Guard,
        up: &mut Upcalls,
    ) -> Result<(), CloseReason> {
        if self.rx.uncounted > 0 && payload.is_empty() && last {
            self.rx.uncounted -= 1;
            return Ok(());
        }
        let invalid = || CloseReason::Protocol(WireError::DDP_TAGGED_INVALID_STAG, None);
        let (number, _) = *self.tx.reads.front().ok_or_else(invalid)?;
        let (request, sges) = me.sq.get(number).ok_or_else(invalid)?;
        let end = u64::from(self.rx.answered) + payload.len() as u64;
        let len = u64::from(request.len);
        let is_read = matches!(request.op, Op::Transfer(SendOp::RdmaRead { .. }));
        // STag and offset of a response of no bytes mean nothing.
        let wrong = if !is_read || !payload.is_empty() && stag != sink(number) {
            Some(WireError::DDP_TAGGED_INVALID_STAG)
        } else if !payload.is_empty() && to != u64::from(self.rx.answered) || end > len {
            Some(WireError::DDP_TAGGED_BOUNDS)
        } else if last != (end == len) {
            Some(WireError::RDMAP_STREAM)
        } else {
            None
        };
        if let Some(error) = wrong {
            return Err(CloseReason::Response(number, error, None));
        }
        if key_table::check_all(sges, me.id.pd, Access::LOCAL_WRITE, guard).is_err() {
            return Err(CloseReason::Request(number, WcStatus::LocalProtection));
        }
        let target = Cursor::at(sges, u64::from(self.rx.answered));
        // SAFETY: registered, for as long as the section lasts, and long enough.
        unsafe { payload.place(target) }
            .map_err(|_| CloseReason::Request(number, WcStatus::LocalProtection))?;
        if !last {
            self.rx.answered = end as u32;
            return Ok(());
        }
        self.rx.answered = 0;
        self.finish_read(number, me, up);
        Ok(())
    }

    /// Our oldest read or atomic operation is answered.
    pub(super) fn finish_read(&mut self, number: u64, me: &mut QpState, up: &mut Upcalls) {
        self.tx.read_done();
        if let Some(request) = me.sq.get_mut(number) {
            request.done = true;
        }
        me.retire(up);
    }
}

/// A segment of a message, to the oldest receive.
pub(super) fn deliver(
    part: Placement,
    payload: Payload<'_>,
    me: &mut QpState,
    guard: &Guard,
    up: &mut Upcalls,
) -> Result<(), CloseReason> {
    // SAFETY: registered, for as long as the section lasts, and long enough.
    let place = |target: Cursor<'_>| unsafe { payload.place(target) };
    deliver::deliver(part, payload.len(), place, me, guard, up).map_err(|why| {
        let error = match why {
            DeliveryError::NoReceive => WireError::DDP_NO_BUFFER,
            DeliveryError::TooLong => WireError::DDP_TOO_LONG,
            DeliveryError::Memory => WireError::DDP_CATASTROPHIC,
            DeliveryError::Key => WireError::RDMAP_CANNOT_INVALIDATE,
        };
        CloseReason::Protocol(error, None)
    })
}

/// A segment of an RDMA write.
pub(super) fn write(
    stag: u32,
    to: u64,
    payload: &[u8],
    me: &QpState,
    guard: &Guard,
) -> Result<(), CloseReason> {
    let len = payload.len();
    let need = Access::REMOTE_WRITE;
    let at = key_table::resolve(stag, me.id.scope(), to, len as u64, need, guard);
    let at = at.map_err(|fault| {
        // Bounds and domains are the business of DDP, rights that of RDMAP (RFC 5040 section
        // 7.1).
        let error = match fault {
            Fault::Key => WireError::DDP_TAGGED_INVALID_STAG,
            Fault::Bounds => WireError::DDP_TAGGED_BOUNDS,
            Fault::Domain => WireError::DDP_TAGGED_STAG_NOT_ASSOCIATED,
            Fault::Access => wire_fault(fault),
        };
        CloseReason::Protocol(error, None)
    })?;
    // SAFETY: registered for remote writes, for as long as the section lasts.
    unsafe { copy::tail_last(payload.as_ptr(), at as *mut u8, len) }
        .map_err(|_| CloseReason::Protocol(wire_fault(Fault::Access), None))
}
