//! A request of the library's own, whose completion says that the requests before it are done.

use super::{Kind, PostedWr, Request, enqueue, send};
use crate::device::verbs::hw::Hw;
use crate::device::verbs::qp::Qp;
use crate::device::verbs::sys;
use crate::device::verbs::wr_table::Numbered;
use crate::device::{Remote, SendOp, WrFlags};

/// Posts a marker behind requests of whose success the device reports nothing, if there is one that cannot
/// do harm. The caller holds no lock.
///
/// It is an RDMA write of no bytes: a peer that permits RDMA writes at all does not look at its key
/// (InfiniBand architecture, C9-88). A peer whose queue pair does not permit them refuses this one too,
/// and its connection would end broken instead of in order. So it is posted only if the consumer has posted an
/// RDMA write on this connection, as far as the ring remembers: if the peer has refused, or refuses, that, the
/// connection ends so anyway.
///
/// Nothing serves where there were sends alone. RDMA reads and atomic operations need a permission of the peer as well,
/// and a send takes one of its receives. What is local is not in every device: binds and invalidations need
/// windows, and few drivers have the state in which a send queue drains (SQD). iWARP devices complete a
/// write when it is queued in TCP, and the end of a connection waits for that itself.
pub(in crate::device::verbs) fn post_marker(qp: &Qp, hw: &Hw) {
    let is_write = |posted: PostedWr| matches!(posted.kind(), Kind::Write | Kind::WriteImm);
    if qp.device.iwarp || !hw.send.remembered().any(is_write) {
        return;
    }
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
