//! Posts: the checks that cost next to nothing, a slot for the completion, the driver.
//!
//! Keys, bounds and rights are the device's business; an error there comes as a completion.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr::null_mut;

use super::cq::Cq;
use super::hw::Hw;
use super::mr::Seen;
use super::qp::{Early, Qp, Sq};
use super::ring::{Kind, Posted, Ring};
use super::sys;
use super::table::{Numbered, RECEIVE};
use crate::device::{
    Access, Completion, PostError, RecvWr, Remote, SendOp, SendWr, Sge, WcOp, WcStatus, WrFlags,
};
use crate::handle::{Guard, Held};

/// Segments a request can have: no device of ours says that it takes more.
pub(super) const MAX_SEGMENTS: usize = 64;

/// A request that is about to go to the driver.
pub(super) struct Ready<'a> {
    pub hw: &'a Hw,
    pub slot: u32,
    pub wr_id: u64,
}

/// A request for the driver. It is long, and an operation has few of its members: the others are
/// left as they are, as programs in C leave them. Not so the word that is the immediate data or
/// the key to invalidate: drivers look at it whatever the operation is, and rxe refuses a bind
/// where it is not zero.
pub(super) struct Request(MaybeUninit<sys::SendWr>);

impl Request {
    /// Nothing yet.
    #[inline(always)]
    pub fn new() -> Request {
        Request(MaybeUninit::uninit())
    }

    /// What all operations have.
    #[inline(always)]
    pub fn fill(&mut self, wr_id: u64, opcode: c_int, send_flags: u32, sges: &[Sge]) {
        let wr = self.0.as_mut_ptr();
        // SAFETY: members of a structure that is ours.
        unsafe {
            (*wr).wr_id = wr_id;
            (*wr).next = null_mut();
            (*wr).sg_list = sges.as_ptr();
            (*wr).num_sge = sges.len() as c_int;
            (*wr).opcode = opcode;
            (*wr).send_flags = send_flags;
            (*wr).invalidate_rkey = 0;
        }
    }

    /// The remote side of an RDMA operation.
    #[inline]
    pub fn remote(&mut self, remote: Remote) {
        let wr = self.0.as_mut_ptr();
        // SAFETY: members of a structure that is ours.
        unsafe {
            (*wr).remote_addr = remote.addr;
            (*wr).rkey = remote.rkey;
        }
    }

    /// The key that a send invalidates.
    #[inline]
    pub fn invalidate(&mut self, rkey: u32) {
        // SAFETY: a member of a structure that is ours.
        unsafe { (*self.0.as_mut_ptr()).invalidate_rkey = rkey };
    }

    /// What a memory window is bound to, and the key it gets.
    pub fn bind(&mut self, mw: *mut sys::Mw, key: u32, info: sys::MwBindInfo) {
        let wr = self.0.as_mut_ptr();
        // SAFETY: members of a structure that is ours.
        unsafe {
            (*wr).mw = mw;
            (*wr).mw_rkey = key;
            (*wr).bind_info = info;
        }
    }
}

/// Gives a request to the driver.
///
/// # Safety
/// The queue pair is open, the request has what its operation needs, and what it points to is
/// valid during the call.
#[inline]
pub(super) unsafe fn send(hw: &Hw, wr: &mut Request) -> c_int {
    let mut bad = null_mut();
    // SAFETY: the caller's promise.
    unsafe { (hw.ops.post_send)(hw.raw(), wr.0.as_mut_ptr(), &mut bad) }
}

/// Why the driver did not take a request.
#[cold]
#[inline(never)]
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

impl Sq {
    /// The queue pair of the device, if requests can be posted to it.
    #[inline(always)]
    fn open(&self) -> Option<&Hw> {
        match &self.hw {
            Some(hw) if self.up => Some(hw),
            _ => None,
        }
    }

    /// Whether the device is to report the success of the next request. Those without a
    /// completion leave its queue with the next that has one: there must be one before the queue
    /// is full.
    #[inline(always)]
    fn signals(&self, hw: &Hw, posted: &Posted) -> bool {
        !posted.silent()
            || self.run >= hw.send.limit() / 2
            || (posted.kind() == Kind::Read && hw.order.is_some())
    }

    /// A request was posted.
    #[inline(always)]
    fn posted(&mut self, signal: bool) {
        self.run = if signal { 0 } else { self.run + 1 };
    }
}

/// Enters a request; the lock of the queue is held.
#[inline(always)]
fn enqueue(hw: &Hw, posted: Posted, signal: bool) -> Result<u32, PostError> {
    if posted.quiet() {
        hw.send_cq.sort();
    }
    let posted = posted.with_signal(signal);
    match hw.send.push(posted) {
        Some(slot) => Ok(slot),
        None => make_room(&hw.send, &hw.send_cq, posted),
    }
}

/// A queue is full. It may only seem so if nobody looks at its completions.
#[cold]
#[inline(never)]
fn make_room(ring: &Ring, cq: &Cq, posted: Posted) -> Result<u32, PostError> {
    cq.reap();
    ring.push(posted).ok_or(PostError::QueueFull)
}

impl Qp {
    /// Finds a place for a request and has `f` give it to the driver.
    pub(super) fn post_request(
        &self,
        posted: Posted,
        bind_context: u64,
        guard: &Guard,
        f: impl FnOnce(Ready<'_>) -> c_int,
    ) -> Result<(), PostError> {
        let mut held = self.sq.lock_as(guard.thread());
        let Some(hw) = held.open() else {
            return self.not_open(held, posted, bind_context);
        };
        let signal = held.signals(hw, &posted);
        let slot = enqueue(hw, posted, signal)?;
        let error = f(Ready {
            hw,
            slot,
            wr_id: hw.number() | u64::from(slot),
        });
        if error != 0 {
            hw.send.pop();
            return Err(refused(error));
        }
        held.posted(signal);
        Ok(())
    }

    /// There is no connection: the request is flushed if there was one.
    #[cold]
    #[inline(never)]
    fn not_open(
        &self,
        held: Held<'_, Sq>,
        posted: Posted,
        bind_context: u64,
    ) -> Result<(), PostError> {
        if !held.ended {
            return Err(PostError::NotConnected);
        }
        drop(held);
        self.flush_request(&posted, bind_context)
    }

    /// A read on a queue pair that may have none outstanding: some devices would let it wait
    /// for ever.
    #[cold]
    #[inline(never)]
    fn fail_request(&self, posted: Posted) -> Result<(), PostError> {
        let hw = self.hw().ok_or(PostError::NotConnected)?;
        let failed = Completion {
            status: WcStatus::LocalQpOperation,
            ..flushed(hw.context, &posted, posted.kind().op())
        };
        hw.send_cq.push(failed, true);
        hw.send_cq.notify();
        hw.fail(failed.status);
        Ok(())
    }

    /// The connection has ended: the request is flushed.
    #[cold]
    fn flush_request(&self, posted: &Posted, bind_context: u64) -> Result<(), PostError> {
        let (cq, context) = {
            let parts = self.parts.lock();
            (parts.0.send_cq.clone(), parts.1.context)
        };
        let Some(cq) = cq else { return Ok(()) };
        let op = match posted.kind() {
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
    match sges {
        // Nearly always; and a loop for more is long.
        [one] => one.len.into(),
        _ => sges.iter().map(|sge| u64::from(sge.len)).sum(),
    }
}

/// Whether all segments may be copied into the request by our own processor.
#[inline(always)]
fn can_inline(hw: &Hw, seen: &mut Seen, len: u32, sges: &[Sge]) -> bool {
    let regions = &hw.device.regions;
    if len > hw.inline {
        return false;
    }
    for sge in sges {
        if sge.len > 0 && !regions.may_read(seen, hw.pd(), sge) {
            return false;
        }
    }
    true
}

/// See [`QueuePair::post_send_in`](crate::device::QueuePair::post_send_in).
#[inline(always)]
pub(super) fn post_send(qp: &Qp, wr: &SendWr<'_>, guard: &Guard) -> Result<(), PostError> {
    let device = &*qp.device;
    let reads = matches!(wr.op, SendOp::RdmaRead { .. });
    // Those of the queue pair are checked below; these may be fewer.
    if reads && wr.sges.len() > device.attr.max_read_sge as usize {
        return Err(PostError::TooManySegments);
    }
    let posted = total(wr.sges);
    match wr.op {
        SendOp::RdmaRead { len, .. } if u64::from(len) > posted => return Err(PostError::Length),
        SendOp::RdmaRead { len, .. } if u64::from(len) < posted => {
            return post_short_read(qp, wr, len, guard);
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
    let mut held = qp.sq.lock_as(guard.thread());
    let sq = &mut *held;
    // Not through `Sq::open`: what was seen of regions is changed meanwhile.
    let hw = match &sq.hw {
        Some(hw) if sq.up => &**hw,
        _ if wr.sges.len() > device.attr.max_sge as usize => {
            return Err(PostError::TooManySegments);
        }
        _ => return qp.not_open(held, posted, 0),
    };
    if reads && hw.attr.max_rd_out == 0 {
        drop(held);
        return qp.fail_request(posted);
    }
    if sges.len() > hw.attr.max_send_sge as usize {
        return Err(PostError::TooManySegments);
    }
    let signal = sq.signals(hw, &posted);
    if signal {
        flags |= sys::SEND_SIGNALED;
    }
    if !reads && can_inline(hw, &mut sq.seen, len, sges) {
        flags |= sys::SEND_INLINE;
    }
    let slot = enqueue(hw, posted, signal)?;
    let mut send_wr = Request::new();
    send_wr.fill(hw.number() | u64::from(slot), opcode, flags, sges);
    match wr.op {
        SendOp::Send => {}
        SendOp::SendInvalidate { rkey } => send_wr.invalidate(rkey),
        SendOp::RdmaWrite(remote) | SendOp::RdmaRead { remote, .. } => send_wr.remote(remote),
    }
    // SAFETY: the lock of the queue keeps the queue pair open; the request is complete.
    let error = unsafe { send(hw, &mut send_wr) };
    if error != 0 {
        hw.send.pop();
        return Err(refused(error));
    }
    sq.posted(signal);
    Ok(())
}

/// A read of fewer bytes than its segments hold.
#[cold]
#[inline(never)]
fn post_short_read(qp: &Qp, wr: &SendWr<'_>, len: u32, guard: &Guard) -> Result<(), PostError> {
    let mut cut = [Sge::NONE; MAX_SEGMENTS];
    let sges = shorten(wr.sges, len, &mut cut);
    post_send(qp, &SendWr { sges, ..*wr }, guard)
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

/// See [`QueuePair::post_recv_in`](crate::device::QueuePair::post_recv_in).
#[inline(always)]
pub(super) fn post_recv(qp: &Qp, wr: &RecvWr<'_>, guard: &Guard) -> Result<(), PostError> {
    qp.device.check(|| qp.pd(), wr.sges, Access::LOCAL_WRITE)?;
    let mut held = qp.rq.lock_as(guard.thread());
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
#[inline(always)]
pub(super) fn recv(hw: &Hw, wr: &RecvWr<'_>) -> Result<(), PostError> {
    if wr.sges.len() > hw.attr.max_recv_sge as usize {
        return Err(PostError::TooManySegments);
    }
    let posted = Posted::new(wr.wr_id, 0, Kind::Recv, wr.flags);
    if posted.quiet() {
        hw.recv_cq.sort();
    }
    let slot = match hw.recv.push(posted) {
        Some(slot) => slot,
        None => make_room(&hw.recv, &hw.recv_cq, posted)?,
    };
    let mut recv = receive(hw.number() | RECEIVE | u64::from(slot), wr.sges);
    let mut bad = null_mut();
    // SAFETY: the lock of the queue keeps the queue pair open; the request is valid during the
    // call.
    let error = unsafe { (hw.ops.post_recv)(hw.raw(), &mut recv, &mut bad) };
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
    let Some(cq) = cq else { return Ok(()) };
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
    fn nothing_of_before_where_all_drivers_look() {
        // SAFETY: integers and raw pointers.
        let dirty: sys::SendWr = unsafe { std::mem::transmute([!0u8; size_of::<sys::SendWr>()]) };
        let mut request = Request(MaybeUninit::new(dirty));
        request.fill(7, sys::WR_BIND_MW, sys::SEND_SIGNALED, &[]);
        // SAFETY: it was whole before.
        let request = unsafe { request.0.assume_init() };
        assert_eq!((request.wr_id, request.opcode), (7, sys::WR_BIND_MW));
        assert_eq!((request.num_sge, request.invalidate_rkey), (0, 0));
        assert!(request.next.is_null());
    }

    #[test]
    fn why_drivers_refuse() {
        assert_eq!(refused(libc::ENOMEM), PostError::QueueFull);
        assert_eq!(refused(-libc::EINVAL), PostError::Length);
    }
}
