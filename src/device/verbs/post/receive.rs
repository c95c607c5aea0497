//! The posts of receives.

use std::ffi::c_int;
use std::hint::black_box;
use std::mem::MaybeUninit;
use std::ops::DerefMut;
use std::ptr::null_mut;

use super::{flush_to, flushed, make_room, refused};
use crate::device::verbs::hw::Hw;
use crate::device::verbs::qp::{Qp, Rq};
use crate::device::verbs::ring::{Kind, PostedWr};
use crate::device::verbs::sys;
use crate::device::verbs::wr_table::{Numbered, RECEIVE};
use crate::device::{PostError, RecvWr, Sge, WcOp};
use crate::handle::Guard;

/// See [`QueuePair::post_recv_in`](crate::device::QueuePair::post_recv_in).
#[inline(always)]
pub(in crate::device::verbs) fn post_recv(
    qp: &Qp,
    wr: &RecvWr<'_>,
    guard: &Guard,
) -> Result<(), PostError> {
    if qp.checks_segments {
        qp.device.check_receive(|| qp.pd(), wr)?;
    }
    match qp.rq.own(guard.thread()) {
        Some(rq) => post_recv_to(rq, qp, *wr),
        None => post_recv_shared(qp, &black_box(*wr), guard),
    }
}

/// [`post_recv_to`] in a thread that is not the owner of the lock.
#[inline(never)]
fn post_recv_shared(qp: &Qp, wr: &RecvWr<'_>, guard: &Guard) -> Result<(), PostError> {
    post_recv_to(qp.rq.lock_as(guard.thread()), qp, *wr)
}

/// Posts a receive with the lock of the queue held. Functions out of line get copies of the receive, which
/// itself then need not be in memory.
#[inline(always)]
fn post_recv_to(
    mut held: impl DerefMut<Target = Rq>,
    qp: &Qp,
    wr: RecvWr<'_>,
) -> Result<(), PostError> {
    let rq = &mut *held;
    let Some(hw) = &rq.hw else {
        return recv_without_queue_pair(qp, held, &black_box(wr));
    };
    if let Some(preposted) = &mut rq.preposted {
        preposted.reserve()?;
    }
    recv(hw, &wr)?;
    if let Some(preposted) = &mut rq.preposted {
        preposted.push(&black_box(wr), hw.recv.len());
    }
    Ok(())
}

/// The receive for the driver.
#[inline]
pub(in crate::device::verbs) fn receive(wr_id: u64, sges: &[Sge]) -> sys::RecvWr {
    // Software iWARP needs at least one segment, which may be empty.
    const EMPTY: &[Sge] = &[Sge::NONE];
    let sges = if sges.is_empty() { EMPTY } else { sges };
    sys::RecvWr {
        wr_id,
        next: null_mut(),
        sg_list: sges.as_ptr(),
        num_sge: sges.len() as c_int,
    }
}

/// Posts a receive to the device. The caller holds the lock of the queue.
#[inline(always)]
pub(in crate::device::verbs) fn recv(hw: &Hw, wr: &RecvWr<'_>) -> Result<(), PostError> {
    if wr.sges.len() > hw.attr.max_recv_sge as usize {
        return Err(PostError::TooManySegments);
    }
    let posted = PostedWr::new(wr.wr_id, 0, Kind::Recv, wr.flags);
    if posted.quiet() {
        hw.recv_cq.filter_notifications();
    }
    let slot = match hw.recv.push(posted) {
        Some(slot) => slot,
        None => make_room(&hw.recv, &hw.recv_cq, posted)?,
    };
    let mut recv = receive(hw.number() | RECEIVE | u64::from(slot), wr.sges);
    // Drivers write it when they refuse a request.
    let mut bad = MaybeUninit::uninit();
    // SAFETY: the lock of the queue keeps the queue pair open; the request is valid during the
    // call.
    let error = unsafe { (hw.ops.post_recv)(hw.raw(), &mut recv, bad.as_mut_ptr()) };
    if error != 0 {
        hw.recv.pop();
        return Err(refused(error));
    }
    Ok(())
}

/// The connection has ended: the receive is flushed, with the lock of the queue `held` as in [`Qp::not_open`]. Or the
/// device could not make a queue pair when the endpoint was reset: it is to try again.
#[cold]
fn recv_without_queue_pair(
    qp: &Qp,
    held: impl DerefMut<Target = Rq>,
    wr: &RecvWr<'_>,
) -> Result<(), PostError> {
    if !held.ended {
        drop(held);
        qp.renew_in_section().map_err(|_| PostError::QueueFull)?;
        return post_recv_to(qp.rq.lock(), qp, *wr);
    }
    let (cq, context) = {
        let parts = qp.parts.lock();
        (parts.0.recv_cq.clone(), parts.1.context)
    };
    let posted = PostedWr::new(wr.wr_id, 0, Kind::Recv, wr.flags);
    flush_to(cq, held, flushed(context, &posted, WcOp::Recv))
}
