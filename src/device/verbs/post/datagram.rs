//! Posts of datagrams.

use std::any::Any;

use super::{can_inline, enqueue, refused, total};
use crate::device::verbs::datagram::Peer;
use crate::device::verbs::post::{Request, send};
use crate::device::verbs::qp::Qp;
use crate::device::verbs::ring::{Kind, PostedWr};
use crate::device::verbs::sys;
use crate::device::verbs::wr_table::Numbered;
use crate::device::{Access, DatagramWr, PostError, SendOp, WrFlags};
use crate::handle::pin::pin;

/// See [`Device::post_datagram`](crate::device::Device::post_datagram).
pub(in crate::device::verbs) fn post_datagram(
    qp: &Qp,
    wr: &DatagramWr<'_>,
) -> Result<(), PostError> {
    let device = &qp.device;
    let to: &dyn Any = &**wr.to;
    let to = match to.downcast_ref::<Peer>() {
        Some(to) if qp.is_for_datagrams() && to.is_of(device) => to,
        _ => return Err(PostError::Unsupported),
    };
    let len = total(wr.sges);
    let longest = qp.max_sizes.of_op(&SendOp::Send);
    if len > u64::from(longest.min(device.attr.max_datagram)) {
        return Err(PostError::TooLong);
    }
    let len = len as u32;
    device.check_segments(|| qp.pd(), wr.sges, Access::LOCAL_READ)?;
    let posted = PostedWr::new(wr.wr_id, len, Kind::Send, wr.flags).as_datagram();
    let guard = pin();
    let mut held = qp.sq.lock_as(guard.thread());
    let sq = &mut *held;
    let Some(hw) = &sq.hw else {
        return Err(PostError::NotConnected);
    };
    if wr.sges.len() > hw.attr.max_send_sge as usize {
        return Err(PostError::TooManySegments);
    }
    let address = to.in_domain(hw.pd()).ok_or(PostError::QueueFull)?;
    let signal = sq.signals(hw, &posted);
    let mut flags = 0;
    if wr.flags.contains(WrFlags::SOLICITED) {
        flags |= sys::SEND_SOLICITED;
    }
    if signal {
        flags |= sys::SEND_SIGNALED;
    }
    if can_inline(hw, &mut sq.region_cache, len, wr.sges) {
        flags |= sys::SEND_INLINE;
    }
    let slot = enqueue(hw, posted, signal)?;
    let mut request = Request::new();
    request.fill(hw.number() | u64::from(slot), sys::WR_SEND, flags, wr.sges);
    request.datagram(sys::WrUd {
        ah: address.raw,
        remote_qpn: wr.qp_number,
        remote_qkey: to.qkey(),
    });
    let kept = hw.addresses.lock().keep(slot, address);
    let error = match &kept {
        // SAFETY: the lock of the queue keeps the queue pair open; the request is complete, and its address
        // handle is kept.
        Ok(_) => unsafe { send(hw, &mut request) },
        Err(()) => libc::ENOMEM,
    };
    if error != 0 {
        hw.send.pop();
        return Err(refused(error));
    }
    sq.posted(signal);
    drop(held);
    // The address handle of an earlier datagram, which may be the last reference.
    drop(kept);
    Ok(())
}
