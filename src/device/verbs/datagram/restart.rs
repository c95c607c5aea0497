//! What happens to a queue pair for datagrams when a request or a receive has failed: it has no connection
//! that could end, so it goes on.
//!
//! A device stops sending (the state SQE), or stops the queue pair altogether and flushes everything that is
//! outstanding, for a single datagram that is longer than its receive too (InfiniBand architecture, 10.3.1).
//! The number of the queue pair stays the same, so that peers reach it afterwards.

use std::ffi::c_int;
use std::io;

use super::start;
use crate::device::verbs::hw::{Hw, zeroed_attr};
use crate::device::verbs::qp::Qp;
use crate::device::verbs::sys;
use crate::device::verbs::teardown::{drain, queues};

/// Has a queue pair for datagrams go on, if the device has stopped it; without effect on others. If the
/// device itself has failed, the consumer gets back what is outstanding. The caller holds no lock and is in
/// no read-side section.
pub(in crate::device::verbs) fn go_on(qp: &Qp) {
    let Some(hw) = qp.hw().filter(|hw| hw.attr.datagrams) else {
        return;
    };
    if send_again(&hw).is_err() && (has_stopped(hw.state()) || hw.device.adapter.has_failed()) {
        restart(qp, &hw);
    }
}

/// Whether a device sends nothing for a queue pair in this state.
fn has_stopped(state: Option<c_int>) -> bool {
    matches!(state, Some(sys::QPS_SQE | sys::QPS_ERR))
}

/// Has a device send again that has stopped sending only.
fn send_again(hw: &Hw) -> io::Result<()> {
    let mut attr = zeroed_attr(sys::QPS_RTS);
    let mut mask = sys::QP_STATE;
    // The kernel's drivers mlx4 and mlx5 take the queue pair to be in RTS until they are told.
    if hw.state() == Some(sys::QPS_SQE) {
        attr.cur_qp_state = sys::QPS_SQE;
        mask |= sys::QP_CUR_STATE;
    }
    hw.modify(&mut attr, mask)
}

/// Resets a queue pair that the device has stopped. What is outstanding is flushed, by the device or here.
fn restart(qp: &Qp, hw: &Hw) {
    let cqs: Vec<_> = queues(hw).collect();
    let holds: Vec<_> = cqs.iter().map(|cq| cq.hold()).collect();
    drain(hw, &holds);
    qp.without_posts(hw, || {
        let collect = || holds.iter().for_each(|hold| _ = hold.collect());
        // Some drivers discard what is in the completion queues when a queue pair is reset.
        collect();
        let reset = hw.modify(&mut zeroed_attr(sys::QPS_RESET), sys::QP_STATE);
        // Others may have completed something until then.
        collect();
        hw.flush_outstanding();
        hw.device.adapter.takes_buffers_again(hw.token);
        if let Err(error) = reset.and_then(|()| start(hw)) {
            log::warn!("an endpoint for datagrams sends and receives no more: {error}");
        }
    });
    drop(holds);
    for cq in cqs {
        cq.notify();
    }
}
