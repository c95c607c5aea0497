//! Posts: the checks that cost next to nothing, a slot for the completion, the driver.
//!
//! The device checks keys, bounds and rights; an error there is reported in a completion.

mod datagram;
mod marker;
mod receive;
mod request;

use std::ffi::c_int;
use std::hint::black_box;
use std::ops::DerefMut;
use std::ptr::with_exposed_provenance;
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub(super) use self::datagram::post_datagram;
pub(super) use self::marker::{is_marker_refused, post_marker};
pub(super) use self::receive::{post_recv, receive, recv};
use self::request::names;
pub(super) use self::request::{Request, send};
use super::cq::Cq;
use super::hw::Hw;
use super::mr::RegionCache;
use super::qp::{Qp, Sq};
use super::ring::{Kind, PostedWr, WrRing};
use super::sys;
use super::wr_table::Numbered;
use crate::device::{
    ATOMIC_LEN, Access, Completion, PostError, SendOp, SendWr, Sge, WcOp, WcStatus, WrFlags,
};
use crate::guarded;
use crate::handle::Guard;

/// Segments a request can have: the limit of this library, whatever the device takes.
pub(super) const MAX_SEGMENTS: usize = 64;

/// A request that has a slot and is about to go to the driver.
pub(super) struct Ready<'a> {
    /// The queue pair.
    pub hw: &'a Hw,
    /// The slot of the request.
    pub slot: u32,
    /// The `wr_id` for the device.
    pub wr_id: u64,
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

/// The completion of a request that is flushed.
fn flushed(context: u64, posted: &PostedWr, op: WcOp) -> Completion {
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
        self.open.as_deref()
    }

    /// Whether the device is to report the success of the next request. Unsignaled requests leave the
    /// queue with the next one that is signaled: there must be one before the queue is full. No earlier, since the
    /// completion takes a place in a queue whose length the consumer has chosen without it: who has a request signaled
    /// in time gets no completions but those.
    #[inline(always)]
    fn signals(&self, hw: &Hw, posted: &PostedWr) -> bool {
        !posted.unsignaled()
            || self.unsignaled_run + 1 >= hw.send.limit()
            || (posted.kind().fetches() && hw.order.is_some())
    }

    /// A request was posted.
    #[inline(always)]
    fn posted(&mut self, signal: bool) {
        self.unsignaled_run = if signal { 0 } else { self.unsignaled_run + 1 };
    }
}

/// Enters a request in the ring. The caller holds the lock of the queue.
#[inline(always)]
fn enqueue(hw: &Hw, posted: PostedWr, signal: bool) -> Result<u32, PostError> {
    if posted.quiet() {
        hw.send_cq.filter_notifications();
    }
    let posted = posted.with_signal(signal);
    match hw.send.push(posted) {
        Some(slot) => Ok(slot),
        None => make_room(&hw.send, &hw.send_cq, posted),
    }
}

/// A queue is full, unless it has completions that are to be discarded.
#[cold]
#[inline(never)]
fn make_room(ring: &WrRing, cq: &Cq, posted: PostedWr) -> Result<u32, PostError> {
    cq.discard_all();
    ring.push(posted).ok_or(PostError::QueueFull)
}

impl Qp {
    /// Enters a request in the ring and has `f` give it to the driver.
    pub(super) fn post_request(
        &self,
        posted: PostedWr,
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

    /// There is no connection: the request is flushed if there was one, which has ended. The lock of the queue
    /// is `held` until the completion is queued: who resets or frees the endpoint removes what is queued after
    /// that lock.
    #[cold]
    #[inline(never)]
    fn not_open(
        &self,
        held: impl DerefMut<Target = Sq>,
        posted: PostedWr,
        bind_context: u64,
    ) -> Result<(), PostError> {
        if !held.ended {
            return Err(PostError::NotConnected);
        }
        let (cq, context) = {
            let parts = self.parts.lock();
            (parts.0.send_cq.clone(), parts.1.context)
        };
        let op = match posted.kind() {
            Kind::Bind => WcOp::Bind {
                context: bind_context,
            },
            kind => kind.op(),
        };
        flush_to(cq, held, flushed(context, &posted, op))
    }

    /// A read, or an atomic operation, on a queue pair that may have none outstanding fails: some
    /// devices would never complete it.
    #[cold]
    #[inline(never)]
    fn fail_request(&self, posted: PostedWr) -> Result<(), PostError> {
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
}

/// Queues the completion of what is flushed, and then notifies without the lock of the work queue, which is
/// `held`.
fn flush_to(
    cq: Option<Arc<Cq>>,
    held: impl Sized,
    completion: Completion,
) -> Result<(), PostError> {
    // Otherwise it is discarded.
    if let Some(cq) = cq {
        cq.push(completion, true);
        drop(held);
        cq.notify();
    }
    Ok(())
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

/// Whether the processor may copy all segments into the request, and can do so: what the program has unmapped or
/// protected since it was registered would end the process in the driver, while the device has it still. What
/// another thread unmaps meanwhile is not seen.
#[inline(always)]
fn can_inline(hw: &Hw, cache: &mut RegionCache, len: u32, sges: &[Sge]) -> bool {
    let regions = &hw.device.regions;
    if len > hw.inline {
        return false;
    }
    for sge in sges {
        if !regions.may_read(cache, || hw.pd(), sge) {
            return false;
        }
        let at = with_exposed_provenance(sge.addr as usize);
        if !guarded::is_short_readable(at, sge.len as usize) {
            return false;
        }
    }
    true
}

/// A request whose checks have passed that need no lock.
#[derive(Clone, Copy)]
struct Checked<'a> {
    wr: SendWr<'a>,
    /// Bytes that are sent or written, or that a read brings.
    len: u32,
    /// Whether the operation fetches memory of the peer.
    reads: bool,
    posted: PostedWr,
    /// The number of the operation for the driver.
    opcode: c_int,
    /// The flags for the driver, as far as they do not depend on the queue.
    flags: u32,
}

/// See [`QueuePair::post_send_in`](crate::device::QueuePair::post_send_in).
#[inline(always)]
pub(super) fn post_send(qp: &Qp, wr: &SendWr<'_>, guard: &Guard) -> Result<(), PostError> {
    if !qp.device.has(&wr.op) {
        return Err(PostError::Unsupported);
    }
    let reads = wr.op.fetches();
    // The limit of the queue pair, which may be higher, is checked below.
    if reads && wr.sges.len() > qp.device.attr.max_read_sge as usize {
        return Err(PostError::TooManySegments);
    }
    let posted = total(wr.sges);
    match fetched(&wr.op) {
        Some(len) if u64::from(len) > posted => return Err(PostError::Length),
        Some(len) if u64::from(len) < posted => return post_short_read(qp, wr, len, guard),
        _ if posted > u64::from(qp.max_sizes.of_op(&wr.op)) => return Err(PostError::TooLong),
        _ => {}
    }
    let len = posted as u32;
    let need = if reads {
        Access::LOCAL_WRITE
    } else {
        Access::LOCAL_READ
    };
    if qp.checks_segments {
        qp.device.check_segments(|| qp.pd(), wr.sges, need)?;
    }
    let (kind, opcode) = names(&wr.op);
    let mut flags = 0;
    if wr.flags.contains(WrFlags::SOLICITED) {
        flags |= sys::SEND_SOLICITED;
    }
    // siw refuses to fence a read; its reads follow each other in any case.
    if wr.flags.contains(WrFlags::FENCE) && !(reads && qp.device.siw) {
        flags |= sys::SEND_FENCE;
    }
    let checked = Checked {
        wr: *wr,
        len,
        reads,
        posted: PostedWr::new(wr.wr_id, len, kind, wr.flags),
        opcode,
        flags,
    };
    match qp.sq.own(guard.thread()) {
        Some(sq) => post_checked(sq, qp, &checked),
        // A copy, so that the request need not be in memory for the other way.
        None => post_checked_shared(qp, &black_box(checked), guard),
    }
}

/// [`post_checked`] in a thread that is not the owner of the lock.
#[inline(never)]
fn post_checked_shared(qp: &Qp, checked: &Checked<'_>, guard: &Guard) -> Result<(), PostError> {
    post_checked(qp.sq.lock_as(guard.thread()), qp, checked)
}

/// Posts a request with the lock of the queue held.
#[inline(always)]
fn post_checked(
    mut held: impl DerefMut<Target = Sq>,
    qp: &Qp,
    checked: &Checked<'_>,
) -> Result<(), PostError> {
    let Checked {
        wr,
        len,
        reads,
        posted,
        opcode,
        mut flags,
    } = *checked;
    let sges = wr.sges;
    let sq = &mut *held;
    // Not through `Sq::open`, since the region cache is changed meanwhile.
    let Some(hw) = sq.open.as_deref() else {
        // Made anew here, so that it is not made before the test.
        let posted = PostedWr::new(wr.wr_id, black_box(len), names(&wr.op).0, wr.flags);
        if sges.len() > qp.device.attr.max_sge as usize {
            return Err(PostError::TooManySegments);
        }
        return qp.not_open(held, posted, 0);
    };
    // Written before the queue pair is open.
    if reads && !hw.may_fetch.load(Ordering::Relaxed) {
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
    if !reads && can_inline(hw, &mut sq.region_cache, len, sges) {
        flags |= sys::SEND_INLINE;
    }
    let slot = enqueue(hw, posted, signal)?;
    let mut send_wr = Request::new();
    send_wr.fill(hw.number() | u64::from(slot), opcode, flags, sges);
    send_wr.operands(&wr.op);
    // SAFETY: the lock of the queue keeps the queue pair open; the request is complete.
    let error = unsafe { send(hw, &mut send_wr) };
    if error != 0 {
        hw.send.pop();
        return Err(match wr.op {
            SendOp::Atomic { remote, .. } if !remote.addr.is_multiple_of(ATOMIC_LEN.into()) => {
                PostError::Misaligned
            }
            _ => refused(error),
        });
    }
    sq.posted(signal);
    Ok(())
}

/// Bytes that an operation fetches, if it does.
#[inline(always)]
fn fetched(op: &SendOp) -> Option<u32> {
    match op {
        SendOp::RdmaRead { len, .. } => Some(*len),
        SendOp::Atomic { .. } => Some(ATOMIC_LEN),
        _ => None,
    }
}

/// A read, or an atomic operation, that fetches fewer bytes than its segments hold.
#[cold]
#[inline(never)]
fn post_short_read(qp: &Qp, wr: &SendWr<'_>, len: u32, guard: &Guard) -> Result<(), PostError> {
    // As many as the consumer has given are judged, not as many as the device needs.
    let limit = match &qp.sq.lock_as(guard.thread()).hw {
        Some(hw) => hw.attr.max_send_sge,
        None => qp.device.attr.max_sge,
    };
    if wr.sges.len() > limit as usize {
        return Err(PostError::TooManySegments);
    }
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
    fn refusals_of_drivers_have_a_code() {
        assert_eq!(refused(libc::ENOMEM), PostError::QueueFull);
        assert_eq!(refused(-libc::EINVAL), PostError::Length);
    }
}
