//! Posts: the checks that cost next to nothing, a slot for the completion, the driver.
//!
//! Keys, bounds and rights are the device's business; an error there comes as a completion.

use std::ffi::c_int;
use std::ptr::null_mut;

use super::hw::Hw;
use super::mr::Seen;
use super::qp::{Early, Qp};
use super::ring::{Kind, Posted};
use super::sys;
use super::table::{Numbered, RECEIVE};
use crate::device::{
    Access, Completion, PostError, RecvWr, SendOp, SendWr, Sge, WcOp, WcStatus, WrFlags,
};

/// Segments a request can have: no device of ours says that it takes more.
pub(super) const MAX_SEGMENTS: usize = 64;

/// A request that is about to go to the driver.
pub(super) struct Ready<'a> {
    pub hw: &'a Hw,
    pub slot: u32,
    pub wr_id: u64,
    /// The device is to report its success.
    pub signal: bool,
    pub seen: &'a mut Seen,
}

/// A request for the driver, without what only some of them have.
#[inline]
pub(super) fn request(wr_id: u64, opcode: c_int, send_flags: u32, sges: &[Sge]) -> sys::SendWr {
    sys::SendWr {
        wr_id,
        next: null_mut(),
        sg_list: sges.as_ptr(),
        num_sge: sges.len() as c_int,
        opcode,
        send_flags,
        invalidate_rkey: 0,
        remote_addr: 0,
        rkey: 0,
        _atomic: [0; 2],
        _xrc: 0,
        mw: null_mut(),
        mw_rkey: 0,
        bind_info: sys::MwBindInfo {
            mr: null_mut(),
            addr: 0,
            length: 0,
            access: 0,
        },
    }
}

/// Gives a request to the driver.
///
/// # Safety
/// The queue pair is open, and what the request points to is valid during the call.
#[inline]
pub(super) unsafe fn send(hw: &Hw, wr: &mut sys::SendWr) -> c_int {
    let mut bad = null_mut();
    // SAFETY: the caller's promise.
    unsafe { (hw.device.adapter.ops.post_send)(hw.raw(), wr, &mut bad) }
}

/// Why the driver did not take a request.
#[cold]
fn refused(error: c_int) -> PostError {
    match error.abs() {
        libc::EINVAL => PostError::Length,
        libc::E2BIG => PostError::TooManySegments,
        libc::EOPNOTSUPP | libc::EPERM => PostError::Access,
        _ => PostError::QueueFull,
    }
}

fn flushed(context: u64, posted: &Posted, op: WcOp) -> Completion {
    Completion {
        context,
        wr_id: posted.wr_id,
        op,
        from_srq: false,
        status: WcStatus::Flushed,
        byte_len: 0,
    }
}

impl Qp {
    /// Finds a place for a request and has `f` give it to the driver.
    #[inline]
    pub(super) fn post_request(
        &self,
        mut posted: Posted,
        bind_context: u64,
        f: impl FnOnce(Ready<'_>) -> c_int,
    ) -> Result<(), PostError> {
        let mut held = self.sq.lock();
        let sq = &mut *held;
        let Some(hw) = sq.hw.as_ref().filter(|_| sq.up) else {
            if !sq.ended {
                return Err(PostError::NotConnected);
            }
            drop(held);
            return self.flush_request(&posted, bind_context);
        };
        if hw.send.is_full() {
            return Err(PostError::QueueFull);
        }
        if posted.quiet
            && let Some(cq) = &hw.send_cq
        {
            cq.sort();
        }
        // Requests without a completion leave the queue of the device with the next that has
        // one: there must be one before the queue is full.
        let signal = !posted.silent
            || sq.run >= hw.send.limit() / 2
            || (posted.kind == Kind::Read && hw.order.is_some());
        posted.signal = signal;
        let slot = hw.send.write(&posted);
        hw.send.push();
        let error = f(Ready {
            hw,
            slot,
            wr_id: hw.number() | u64::from(slot),
            signal,
            seen: &mut sq.seen,
        });
        if error != 0 {
            hw.send.pop();
            return Err(refused(error));
        }
        sq.run = if signal { 0 } else { sq.run + 1 };
        Ok(())
    }

    /// A read on a queue pair that may have none outstanding: some devices would let it wait
    /// for ever.
    #[cold]
    fn fail_request(&self, posted: &Posted) -> Result<(), PostError> {
        let hw = self.hw().ok_or(PostError::NotConnected)?;
        let cq = hw.send_cq.as_ref().ok_or(PostError::QueueFull)?;
        let failed = Completion {
            status: WcStatus::LocalQpOperation,
            ..flushed(hw.context, posted, posted.kind.op())
        };
        cq.push(failed, true);
        cq.notify();
        hw.fail();
        Ok(())
    }

    /// The connection has ended: the request is flushed.
    #[cold]
    fn flush_request(&self, posted: &Posted, bind_context: u64) -> Result<(), PostError> {
        let (cq, context) = {
            let parts = self.parts.lock();
            (parts.0.send_cq.clone(), parts.1.context)
        };
        let cq = cq.ok_or(PostError::QueueFull)?;
        let op = match posted.kind {
            Kind::Bind => WcOp::Bind {
                context: bind_context,
            },
            kind => kind.op(),
        };
        cq.push(flushed(context, posted, op), true);
        cq.notify();
        Ok(())
    }
}

/// The bytes of all segments.
#[inline]
fn total(sges: &[Sge]) -> u64 {
    sges.iter().map(|sge| u64::from(sge.len)).sum()
}

/// Whether all segments may be copied into the request by our own processor.
#[inline]
fn can_inline(ready: &mut Ready<'_>, len: u32, sges: &[Sge]) -> bool {
    let regions = &ready.hw.device.regions;
    len <= ready.hw.inline
        && sges
            .iter()
            .all(|sge| sge.len == 0 || regions.may_read(ready.seen, ready.hw.pd(), sge))
}

/// See [`QueuePair::post_send`](crate::device::QueuePair::post_send).
#[inline]
pub(super) fn post_send(qp: &Qp, wr: &SendWr<'_>) -> Result<(), PostError> {
    let device = &*qp.device;
    let reads = matches!(wr.op, SendOp::RdmaRead { .. });
    let most = if reads {
        device.attr.max_read_sge
    } else {
        device.attr.max_sge
    };
    if wr.sges.len() > most as usize {
        return Err(PostError::TooManySegments);
    }
    let posted = total(wr.sges);
    match wr.op {
        SendOp::RdmaRead { len, .. } if u64::from(len) > posted => return Err(PostError::Length),
        SendOp::RdmaRead { len, .. } if u64::from(len) < posted => {
            return post_short_read(qp, wr, len);
        }
        _ if posted > u64::from(device.attr.max_message_size) => return Err(PostError::Length),
        _ => {}
    }
    let (len, sges) = (posted as u32, wr.sges);
    let need = if reads {
        Access::LOCAL_WRITE
    } else {
        Access::LOCAL_READ
    };
    device.check(|| qp.pd(), sges, need)?;
    let (kind, opcode) = match wr.op {
        SendOp::Send => (Kind::Send, sys::WR_SEND),
        SendOp::SendInvalidate { .. } => (Kind::Send, sys::WR_SEND_WITH_INV),
        SendOp::RdmaWrite(_) => (Kind::Write, sys::WR_RDMA_WRITE),
        SendOp::RdmaRead { .. } => (Kind::Read, sys::WR_RDMA_READ),
    };
    let mut flags = 0;
    if wr.flags.contains(WrFlags::SOLICITED) {
        flags |= sys::SEND_SOLICITED;
    }
    // siw refuses to fence a read; its reads follow each other in any case.
    if wr.flags.contains(WrFlags::FENCE) && !(reads && device.siw) {
        flags |= sys::SEND_FENCE;
    }
    let posted = Posted::new(wr.wr_id, len, kind, wr.flags);
    let mut no_depth = false;
    let result = qp.post_request(posted, 0, |mut ready| {
        if reads && ready.hw.attr.max_rd_out == 0 {
            no_depth = true;
            return libc::EDOM;
        }
        if sges.len() > ready.hw.attr.max_send_sge as usize {
            return libc::E2BIG;
        }
        if ready.signal {
            flags |= sys::SEND_SIGNALED;
        }
        if !reads && can_inline(&mut ready, len, sges) {
            flags |= sys::SEND_INLINE;
        }
        let mut send_wr = request(ready.wr_id, opcode, flags, sges);
        match wr.op {
            SendOp::Send => {}
            SendOp::SendInvalidate { rkey } => send_wr.invalidate_rkey = rkey,
            SendOp::RdmaWrite(remote) | SendOp::RdmaRead { remote, .. } => {
                send_wr.remote_addr = remote.addr;
                send_wr.rkey = remote.rkey;
            }
        }
        // SAFETY: the lock of the queue keeps the queue pair open.
        unsafe { send(ready.hw, &mut send_wr) }
    });
    if no_depth {
        return qp.fail_request(&posted);
    }
    result
}

/// A read of fewer bytes than its segments hold.
#[cold]
#[inline(never)]
fn post_short_read(qp: &Qp, wr: &SendWr<'_>, len: u32) -> Result<(), PostError> {
    let mut cut = [Sge::NONE; MAX_SEGMENTS];
    let sges = shorten(wr.sges, len, &mut cut);
    post_send(qp, &SendWr { sges, ..*wr })
}

/// The first `len` bytes of the segments.
fn shorten<'a>(sges: &[Sge], len: u32, out: &'a mut [Sge; MAX_SEGMENTS]) -> &'a [Sge] {
    let mut left = len;
    let mut count = 0;
    for (to, from) in out.iter_mut().zip(sges) {
        if left == 0 {
            break;
        }
        *to = Sge {
            len: from.len.min(left),
            ..*from
        };
        left -= to.len;
        count += 1;
    }
    &out[..count]
}

/// See [`QueuePair::post_recv`](crate::device::QueuePair::post_recv).
#[inline]
pub(super) fn post_recv(qp: &Qp, wr: &RecvWr<'_>) -> Result<(), PostError> {
    qp.device.check(|| qp.pd(), wr.sges, Access::LOCAL_WRITE)?;
    let mut held = qp.rq.lock();
    let rq = &mut *held;
    let Some(hw) = &rq.hw else {
        if !rq.ended {
            return Err(PostError::QueueFull);
        }
        drop(held);
        return flush_recv(qp, wr);
    };
    recv(hw, wr)?;
    if let Some(early) = &mut rq.early {
        early.push(Early {
            wr_id: wr.wr_id,
            sges: wr.sges.into(),
            flags: wr.flags,
        });
    }
    Ok(())
}

/// A receive for the driver.
#[inline]
pub(super) fn receive(wr_id: u64, sges: &[Sge]) -> sys::RecvWr {
    // Software iWARP wants one segment at least; it may be empty.
    const NOTHING: &[Sge] = &[Sge::NONE];
    let sges = if sges.is_empty() { NOTHING } else { sges };
    sys::RecvWr {
        wr_id,
        next: null_mut(),
        sg_list: sges.as_ptr(),
        num_sge: sges.len() as c_int,
    }
}

/// Posts a receive to the device; the lock of the queue is held.
#[inline]
pub(super) fn recv(hw: &Hw, wr: &RecvWr<'_>) -> Result<(), PostError> {
    if hw.recv.is_full() {
        return Err(PostError::QueueFull);
    }
    if wr.sges.len() > hw.attr.max_recv_sge as usize {
        return Err(PostError::TooManySegments);
    }
    let posted = Posted::new(wr.wr_id, 0, Kind::Recv, wr.flags);
    if posted.quiet
        && let Some(cq) = &hw.recv_cq
    {
        cq.sort();
    }
    let slot = hw.recv.write(&posted);
    hw.recv.push();
    let mut recv = receive(hw.number() | RECEIVE | u64::from(slot), wr.sges);
    let mut bad = null_mut();
    // SAFETY: the lock of the queue keeps the queue pair open; the request is valid during the
    // call.
    let error = unsafe { (hw.device.adapter.ops.post_recv)(hw.raw(), &mut recv, &mut bad) };
    if error != 0 {
        hw.recv.pop();
        return Err(refused(error));
    }
    Ok(())
}

#[cold]
fn flush_recv(qp: &Qp, wr: &RecvWr<'_>) -> Result<(), PostError> {
    let (cq, context) = {
        let parts = qp.parts.lock();
        (parts.0.recv_cq.clone(), parts.1.context)
    };
    let cq = cq.ok_or(PostError::QueueFull)?;
    let posted = Posted::new(wr.wr_id, 0, Kind::Recv, wr.flags);
    cq.push(flushed(context, &posted, WcOp::Recv), true);
    cq.notify();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_fills_the_first_segments() {
        let sge = |addr, len| Sge { addr, len, lkey: 1 };
        let all = [sge(0x10, 4), sge(0x20, 4), sge(0x30, 4)];
        let mut out = [Sge::NONE; MAX_SEGMENTS];
        assert_eq!(shorten(&all, 6, &mut out), [sge(0x10, 4), sge(0x20, 2)]);
        assert_eq!(shorten(&all, 4, &mut out), [sge(0x10, 4)]);
        assert_eq!(shorten(&all, 0, &mut out), []);
    }

    #[test]
    fn why_drivers_refuse() {
        assert_eq!(refused(libc::ENOMEM), PostError::QueueFull);
        assert_eq!(refused(-libc::EINVAL), PostError::Length);
    }
}
