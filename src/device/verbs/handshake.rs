//! What a connection is asked for with, and how a queue pair is made ready for it.

use std::ffi::c_int;
use std::io;

use super::adapter::check;
use super::hw::{Hw, zeroed_attr};
use super::id::CmId;
use super::qp::Qp;
use super::{Verbs, sys};

/// How long a receiver that is not ready is left alone: 0.64 ms (InfiniBand, table 45).
const RNR_TIMER: u8 = 12;

/// The parameters of a connection, but for its private data.
pub(super) fn parameters(device: &Verbs, hw: &Hw, rd_in: u32, rd_out: u32) -> sys::ConnParam {
    let depth = |n: u32| n.min(254) as u8;
    sys::ConnParam {
        private_data: std::ptr::null(),
        private_data_len: 0,
        responder_resources: depth(rd_in),
        initiator_depth: depth(rd_out),
        flow_control: 1,
        retry_count: device.params.retry,
        rnr_retry_count: device.params.rnr_retry,
        srq: hw.srq.is_some().into(),
        qp_num: hw.qp_num,
    }
}

/// Takes a queue pair to a state, with the attributes of the connection.
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
    // Nothing in it: the connection manager makes the change.
    if mask == 0 {
        return Ok(());
    }
    hw.modify(&mut attr, mask)
}

/// Makes a queue pair ready for the connection; the depths are those of the accepting side.
pub(super) fn ready(qp: &Qp, id: &CmId, depths: Option<(u8, u8)>) -> io::Result<()> {
    let hw = qp.hw().ok_or(io::ErrorKind::NotConnected)?;
    qp.withhold();
    advance(qp, &hw, id, sys::QPS_INIT, |attr, mask| {
        // What the consumer opens to peers is a matter of regions and windows.
        attr.qp_access_flags |= (sys::ACCESS_REMOTE_READ | sys::ACCESS_REMOTE_WRITE) as u32;
        *mask |= sys::QP_ACCESS_FLAGS;
    })?;
    advance(qp, &hw, id, sys::QPS_RTR, |attr, mask| {
        if *mask & sys::QP_MIN_RNR_TIMER != 0 {
            attr.min_rnr_timer = RNR_TIMER;
        }
        if let Some((rd_in, _)) = depths {
            attr.max_dest_rd_atomic = rd_in;
        }
    })?;
    advance(qp, &hw, id, sys::QPS_RTS, |attr, _| {
        if let Some((_, rd_out)) = depths {
            attr.max_rd_atomic = rd_out;
        }
    })
}

/// Active side: the peer has accepted.
pub(super) fn respond(qp: &Qp, id: &CmId) -> io::Result<()> {
    ready(qp, id, None)?;
    // SAFETY: the id is valid.
    check(unsafe { (qp.device.adapter.lib.rdma_establish)(id.raw) })
}
