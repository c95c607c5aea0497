//! A request of the library's own, whose completion says that the requests before it are done.

use super::{Kind, PostedWr, Request, enqueue, send};
use crate::device::verbs::hw::Hw;
use crate::device::verbs::qp::Qp;
use crate::device::verbs::sys;
use crate::device::verbs::wr_table::Numbered;
use crate::device::{Remote, SendOp, WrFlags};

/// Whether the peer has refused a marker, by its completion: its queue pair permits no RDMA writes. What was before the
/// marker is done, so that the connection ends in order all the same.
pub(in crate::device::verbs) fn is_marker_refused(posted: &PostedWr, wc: &sys::Wc) -> bool {
    posted.is_marker() && matches!(wc.status, sys::WC_REM_INV_REQ_ERR | sys::WC_REM_ACCESS_ERR)
}

/// Posts a marker behind requests of whose success the device reports nothing. The caller holds no lock.
///
/// It is an RDMA write of no bytes: a peer that permits RDMA writes at all does not look at its key
/// (InfiniBand architecture, C9-88; RFC 5040, section 5.1). rdma_cm permits them on every queue pair that it connects,
/// and a peer that has taken that back refuses the marker, which tells as much: it has done what is before
/// ([`is_marker_refused`]).
///
/// Nothing else serves in all cases. RDMA reads and atomic operations need a permission that peers do not always give,
/// and a send takes one of the peer's receives. What is local is not in every device: binds and invalidations need
/// windows, and few drivers have the state in which a send queue drains (SQD). iWARP devices complete a
/// write, and what is before it, when it is queued in TCP; the end of a connection waits for TCP itself, but flushes
/// requests that are not queued there yet.
pub(in crate::device::verbs) fn post_marker(qp: &Qp, hw: &Hw) {
    let mut sq = qp.sq.lock();
    if !sq.open().is_some_and(|open| std::ptr::eq(open, hw)) {
        return;
    }
    let posted = PostedWr::new(0, 0, Kind::Write, WrFlags::UNSIGNALED).as_marker();
    let Ok(slot) = enqueue(hw, posted, true) else {
        return;
    };
    let mut request = Request::new();
    let wr_id = hw.number() | u64::from(slot);
    request.fill(wr_id, sys::WR_RDMA_WRITE, sys::SEND_SIGNALED, &[]);
    request.operands(&SendOp::RdmaWrite(Remote { addr: 0, rkey: 0 }));
    // SAFETY: the lock of the queue keeps the queue pair open; the request is complete.
    if unsafe { send(hw, &mut request) } == 0 {
        sq.posted(true);
    } else {
        hw.send.pop();
    }
}
