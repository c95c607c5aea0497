//! The parameters of a connection, and the states that take a queue pair to it.

use std::ffi::c_int;
use std::io;
use std::sync::atomic::Ordering;

use super::adapter::check;
use super::hw::{Hw, zeroed_attr};
use super::id::CmId;
use super::qp::Qp;
use super::{Verbs, sys};
use crate::device::Access;

/// The parameters of a request or reply, without its private data.
pub(super) fn parameters(device: &Verbs, hw: &Hw, rd_in: u32, rd_out: u32) -> sys::ConnParam {
    let depth = |n: u32| n.min(254) as u8;
    sys::ConnParam {
        private_data: std::ptr::null(),
        private_data_len: 0,
        responder_resources: depth(rd_in),
        initiator_depth: depth(rd_out),
        flow_control: 1,
        retry_count: device.params.tuning.retry,
        rnr_retry_count: device.params.tuning.rnr_retry,
        srq: hw.srq.is_some().into(),
        qp_num: hw.qp_num,
    }
}

/// Takes a queue pair to a state, with the attributes that librdmacm has for the connection.
fn advance(
    qp: &Qp,
    hw: &Hw,
    id: &CmId,
    to: c_int,
    change: impl FnOnce(&mut sys::QpAttr, &mut c_int),
) -> io::Result<()> {
    let mut attr = zeroed_attr(to);
    let mut mask = 0;
    // SAFETY: the id and the places for the results are valid.
    check(unsafe { (qp.device.adapter.lib.rdma_init_qp_attr)(id.raw, &mut attr, &mut mask) })?;
    if qp.device.infiniband {
        mask &= !sys::QP_ROCE_ONLY;
    }
    change(&mut attr, &mut mask);
    // The connection manager of the kernel changes the state itself.
    if mask == 0 {
        return Ok(());
    }
    hw.modify(&mut attr, mask)
}

/// Makes a queue pair ready for the connection; `depths` are those of the passive end.
pub(super) fn ready(qp: &Qp, id: &CmId, depths: Option<(u8, u8)>) -> io::Result<()> {
    let hw = qp.hw().ok_or(io::ErrorKind::NotConnected)?;
    qp.withhold();
    advance(qp, &hw, id, sys::QPS_INIT, |attr, mask| {
        // Regions and windows decide what peers may do.
        attr.qp_access_flags |= qp.device.remote_rights(Access::REMOTE) as u32;
        *mask |= sys::QP_ACCESS_FLAGS;
    })?;
    let tuning = &qp.device.params.tuning;
    advance(qp, &hw, id, sys::QPS_RTR, |attr, mask| {
        if *mask & sys::QP_MIN_RNR_TIMER != 0 {
            attr.min_rnr_timer = tuning.rnr_timer;
        }
        if let Some(mtu) = tuning.mtu {
            attr.path_mtu = attr.path_mtu.min(mtu);
        }
        if let Some(tclass) = tuning.tclass {
            attr.ah_attr.traffic_class = tclass;
        }
        if let Some((rd_in, _)) = depths {
            attr.max_dest_rd_atomic = rd_in;
        }
    })?;
    advance(qp, &hw, id, sys::QPS_RTS, |attr, mask| {
        if let Some(timer) = tuning.ack_timer {
            attr.timeout = timer;
        }
        if let Some((_, rd_out)) = depths {
            attr.max_rd_atomic = rd_out;
        }
        if *mask & sys::QP_MAX_QP_RD_ATOMIC != 0 && attr.max_rd_atomic == 0 {
            hw.may_fetch.store(false, Ordering::Relaxed);
        }
    })
}

/// Active end: the peer has accepted.
pub(super) fn respond(qp: &Qp, id: &CmId) -> io::Result<()> {
    ready(qp, id, None)?;
    // SAFETY: the id is valid.
    check(unsafe { (qp.device.adapter.lib.rdma_establish)(id.raw) })
}
