//! Both ends in one process: the thread that posts moves the data with one copy.

use std::convert::Infallible;

use crate::device::connection_log::IN_ORDER;
use crate::device::soft::mem::copy::{self, Cursor};
use crate::device::soft::mem::{self, key_table};
use crate::device::soft::qp::deliver;
use crate::device::soft::qp::link::{Outcome, execute_oldest};
use crate::device::soft::qp::state::{QpState, Supply};
use crate::device::soft::qp::work_queue::{Op, Request, Transfer};
use crate::device::soft::upcalls::Upcalls;
use crate::device::{Access, AtomicOp, CmEvent, Remote, SendOp, Sge, WcStatus, WrFlags};
use crate::guarded::CopyFault;
use crate::handle::Guard;

/// Executes a transfer of `me`. The keys of the local segments were checked in the same
/// read-side section.
#[inline(always)]
pub(crate) fn execute(
    me: &QpState,
    peer: &mut QpState,
    transfer: &Transfer<'_>,
    guard: &Guard,
    up: &mut Upcalls,
) -> Outcome {
    let len = u64::from(transfer.len);
    let local = Cursor::new(transfer.sges);
    match transfer.op {
        SendOp::Send => send(peer, transfer, None, guard, up),
        SendOp::SendInvalidate { rkey } => send(peer, transfer, Some(rkey), guard, up),
        SendOp::RdmaWrite(to) => write(peer, transfer, to, guard),
        SendOp::RdmaWriteImm { remote, imm } => {
            write_immediate(peer, transfer, remote, imm, guard, up)
        }
        op if op.fetches() && me.ord == 0 => Outcome::Failed(WcStatus::LocalQpOperation),
        SendOp::Atomic { remote, op } => atomic(peer, transfer, remote, op, guard),
        SendOp::RdmaRead { remote: from, .. } => {
            let Some(addr) = open(peer, from, len, Access::REMOTE_READ, guard) else {
                return Outcome::Failed(WcStatus::RemoteAccess);
            };
            let source = [Sge {
                addr,
                len: transfer.len,
                lkey: from.rkey,
            }];
            // SAFETY: as above.
            match unsafe { copy::segments(Cursor::new(&source), local, len) } {
                Ok(()) => Outcome::Done,
                Err(CopyFault::Source) => Outcome::Failed(WcStatus::RemoteAccess),
                Err(CopyFault::Target) => Outcome::Failed(WcStatus::LocalProtection),
            }
        }
    }
}

/// The address in memory of a range of the peer, if the range is open to an operation.
#[inline(always)]
fn open(peer: &QpState, range: Remote, len: u64, need: Access, guard: &Guard) -> Option<u64> {
    let scope = peer.id.scope();
    key_table::resolve(range.rkey, scope, range.addr, len, need, guard).ok()
}

#[inline(always)]
fn write(peer: &QpState, transfer: &Transfer<'_>, to: Remote, guard: &Guard) -> Outcome {
    let len = u64::from(transfer.len);
    let Some(at) = open(peer, to, len, Access::REMOTE_WRITE, guard) else {
        return Outcome::Failed(WcStatus::RemoteAccess);
    };
    let local = Cursor::new(transfer.sges);
    // SAFETY: both ranges were checked to be registered, in this section.
    let copied = unsafe { copy::gather_tail_last(local, at as *mut u8, len) };
    match copied {
        Ok(()) => Outcome::Done,
        Err(CopyFault::Source) => Outcome::Failed(WcStatus::LocalProtection),
        Err(CopyFault::Target) => Outcome::Failed(WcStatus::RemoteAccess),
    }
}

/// Writes once there is a receive for the number.
#[inline(never)]
fn write_immediate(
    peer: &mut QpState,
    transfer: &Transfer<'_>,
    to: Remote,
    imm: u32,
    guard: &Guard,
    up: &mut Upcalls,
) -> Outcome {
    match peer.supply(up) {
        Supply::Ready => {}
        Supply::Empty => return Outcome::Wait,
        Supply::Excess => return Outcome::Failed(WcStatus::RemoteOperation),
    }
    let outcome = match transfer.len {
        0 => Outcome::Done,
        _ => write(peer, transfer, to, guard),
    };
    let solicited = transfer.flags.contains(WrFlags::SOLICITED);
    if outcome == Outcome::Done
        && deliver::deliver_immediate(imm, transfer.len, solicited, peer, up).is_err()
    {
        return Outcome::Wait;
    }
    outcome
}

#[inline(never)]
fn atomic(
    peer: &QpState,
    transfer: &Transfer<'_>,
    word: Remote,
    op: AtomicOp,
    guard: &Guard,
) -> Outcome {
    match mem::atomic::execute(op, word, peer.id.scope(), guard) {
        Ok(before) => {
            // SAFETY: the local segments were checked to be registered, in this section, and hold as
            // much.
            match unsafe { mem::atomic::store_result(before, transfer.sges) } {
                Ok(()) => Outcome::Done,
                Err(_) => Outcome::Failed(WcStatus::LocalProtection),
            }
        }
        Err(status) => Outcome::Failed(status),
    }
}

#[inline(always)]
fn send(
    peer: &mut QpState,
    transfer: &Transfer<'_>,
    invalidate: Option<u32>,
    guard: &Guard,
    up: &mut Upcalls,
) -> Outcome {
    match peer.supply(up) {
        Supply::Ready => {}
        Supply::Empty => return Outcome::Wait,
        Supply::Excess => return Outcome::Failed(WcStatus::RemoteOperation),
    }
    let Some((receive, target)) = peer.rq.front() else {
        return Outcome::Wait;
    };
    let receive = *receive;
    let failed = if transfer.len > receive.len {
        Some(WcStatus::LocalLength)
    } else if peer
        .check_receive(&receive, target, transfer.len.into(), guard)
        .is_err()
    {
        Some(WcStatus::LocalProtection)
    } else {
        None
    };
    if let Some(status) = failed {
        peer.fail_recv(status, up);
        return Outcome::Failed(WcStatus::RemoteOperation);
    }
    if invalidate.is_some_and(|rkey| key_table::invalidate(rkey, peer.id.scope(), guard).is_err()) {
        return Outcome::Failed(WcStatus::RemoteAccess);
    }
    // SAFETY: both ranges were checked to be registered, in this section, and the receive is as
    // long as the message.
    if let Err(fault) = unsafe { copy::between(transfer.sges, target, transfer.len) } {
        return send_faulted(peer, fault, up);
    }
    peer.rq.advance();
    let solicited = transfer.flags.contains(WrFlags::SOLICITED);
    peer.complete_recv(
        &receive,
        WcStatus::Success,
        transfer.len,
        solicited,
        deliver::received(invalidate),
        guard.thread(),
        up,
    );
    Outcome::Done
}

/// A message could not be copied: its receive fails if that is why.
#[cold]
#[inline(never)]
fn send_faulted(peer: &mut QpState, fault: CopyFault, up: &mut Upcalls) -> Outcome {
    match fault {
        CopyFault::Source => Outcome::Failed(WcStatus::LocalProtection),
        CopyFault::Target => {
            peer.fail_recv(WcStatus::LocalProtection, up);
            Outcome::Failed(WcStatus::RemoteOperation)
        }
    }
}

/// A request of `me` has failed: the connection is broken.
pub(crate) fn fail(me: &mut QpState, peer: &mut QpState, status: WcStatus, up: &mut Upcalls) {
    let cause = format_args!("a request of this end failed: {status}");
    me.end(CmEvent::Broken, &cause, up);
    let cause = format_args!("a request of the peer failed: {status}");
    peer.end(CmEvent::Broken, &cause, up);
}

/// A request was queued at `me`. Transfers are executed when they are posted, or wait for a
/// receive; a bind that is the only one is executed now.
pub(crate) fn posted_send(me: &mut QpState, peer: &mut QpState, guard: &Guard, up: &mut Upcalls) {
    let is_bind = |(request, _): (&Request, _)| matches!(request.op, Op::Bind { .. });
    if me.sq.front().is_some_and(is_bind) {
        pump(me, peer, guard, up);
    }
}

/// Executes what is queued at `me`, as far as the peer has receives.
pub(crate) fn pump(me: &mut QpState, peer: &mut QpState, guard: &Guard, up: &mut Upcalls) {
    while let Ok(Some((request, outcome))) = execute_oldest(me, guard, |me, transfer| {
        Ok::<_, Infallible>(execute(me, peer, transfer, guard, up))
    }) {
        match outcome {
            Outcome::Wait => return,
            Outcome::Done => {
                me.sq.pop();
                me.complete(&request, WcStatus::Success, up);
            }
            Outcome::Failed(status) => {
                me.sq.pop();
                me.complete(&request, status, up);
                fail(me, peer, status, up);
            }
        }
    }
    if me.close_at.is_some() {
        me.end(CmEvent::Disconnected, &IN_ORDER, up);
        peer.end(CmEvent::Disconnected, &IN_ORDER, up);
    }
}
