//! Places a piece of a message that has arrived from another process in the receive at the head of
//! the queue.

use super::state::QpState;
use crate::device::soft::mem::copy::{self, Cursor};
use crate::device::soft::mem::key_table;
use crate::device::soft::upcalls::Upcalls;
use crate::device::{WcOp, WcStatus};
use crate::guarded::CopyFault;
use crate::handle::{Guard, pin};

/// Where a piece of a message belongs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placement {
    pub offset: u32,
    pub last: bool,
    pub solicited: bool,
    pub invalidate: Option<u32>,
}

/// Why a piece could not be placed. The receive has failed, but for a wrong key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DeliveryError {
    /// There is no receive.
    NoReceive,
    /// It is too short.
    TooLong,
    /// Its memory is not registered any more, or is not there.
    Memory,
    /// The key to invalidate is not one.
    Key,
}

/// Places a whole message in a receive of one segment, and completes the receive. False if that
/// takes [`deliver`]; nothing has happened then.
///
/// # Safety
/// `len` bytes at `from` may be read.
#[inline(always)]
pub(crate) unsafe fn deliver_whole(
    from: *const u8,
    len: usize,
    solicited: bool,
    me: &mut QpState,
    guard: &Guard,
    up: &mut Upcalls,
) -> bool {
    let Some((receive, sges @ [into])) = me.rq.front() else {
        return false;
    };
    if len > into.len as usize || me.check_receive(receive, sges, len as u64, guard).is_err() {
        return false;
    }
    // SAFETY: registered, for as long as the section lasts, and long enough; and the caller's
    // promise.
    if unsafe { copy::arrived(from, into.addr as *mut u8, len) }.is_err() {
        return false;
    }
    let receive = *receive;
    me.rq.advance();
    let status = WcStatus::Success;
    let (len, op, thread) = (len as u32, WcOp::Recv, guard.thread());
    me.complete_recv(&receive, status, len, solicited, op, thread, up);
    true
}

/// Places a piece of `len` bytes, and completes the receive with the last one. `place` is given the
/// place, which is registered for as long as the section lasts, and at least `len` bytes long.
#[inline]
pub(crate) fn deliver(
    part: Placement,
    len: usize,
    place: impl FnOnce(Cursor<'_>) -> Result<(), CopyFault>,
    me: &mut QpState,
    guard: &Guard,
    up: &mut Upcalls,
) -> Result<(), DeliveryError> {
    let Some((receive, sges)) = me.rq.front() else {
        return Err(DeliveryError::NoReceive);
    };
    let receive = *receive;
    let end = u64::from(part.offset) + len as u64;
    let failed = if end > u64::from(receive.len) {
        Some((WcStatus::LocalLength, DeliveryError::TooLong))
    } else if me.check_receive(&receive, sges, end, guard).is_err() {
        Some((WcStatus::LocalProtection, DeliveryError::Memory))
    } else {
        None
    };
    if let Some((status, why)) = failed {
        me.fail_recv(status, up);
        return Err(why);
    }
    let target = Cursor::at(sges, u64::from(part.offset));
    if let Err(fault) = place(target) {
        if fault == CopyFault::Target {
            me.fail_recv(WcStatus::LocalProtection, up);
        }
        return Err(DeliveryError::Memory);
    }
    if part.last {
        if let Some(rkey) = part.invalidate {
            key_table::invalidate(rkey, me.id.scope(), guard).map_err(|_| DeliveryError::Key)?;
        }
        me.rq.advance();
        me.complete_recv(
            &receive,
            WcStatus::Success,
            end as u32,
            part.solicited,
            received(part.invalidate),
            guard.thread(),
            up,
        );
    }
    Ok(())
}

/// What a receive completes as, whose message has invalidated a key, or none.
#[inline]
pub(crate) fn received(invalidated: Option<u32>) -> WcOp {
    invalidated.map_or(WcOp::Recv, |rkey| WcOp::RecvInvalidate { rkey })
}

/// Completes the receive at the head of the queue, in which nothing is placed, for an RDMA write of
/// `len` bytes with a number.
pub(crate) fn deliver_immediate(
    imm: u32,
    len: u32,
    solicited: bool,
    me: &mut QpState,
    up: &mut Upcalls,
) -> Result<(), DeliveryError> {
    let receive = me.rq.pop().ok_or(DeliveryError::NoReceive)?;
    let op = WcOp::RecvRdmaImm { imm };
    let (status, thread) = (WcStatus::Success, pin::thread());
    me.complete_recv(&receive, status, len, solicited, op, thread, up);
    Ok(())
}
