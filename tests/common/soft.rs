//! What programs on the soft device need to have queue pairs: handlers that pass on what they
//! are notified of, and a queue pair with one completion queue.
#![allow(dead_code)] // Not every test program needs all of this.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use dat_core::testing::device::soft::{ConnRequest, Cq, Pd, Qp, Soft};
use dat_core::testing::device::*;

/// How long anything may take.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// For those who poll.
pub struct Quiet;

impl CqHandler for Quiet {
    fn notify(&self) {}
    fn overflow(&self) {}
}

struct Events(Sender<CmEvent>);

impl QpHandler for Events {
    fn connection(&self, event: CmEvent) {
        let _ = self.0.send(event);
    }
    fn soft_watermark(&self) {}
}

/// For a listener.
pub struct Requests(pub Sender<ConnRequest>);

impl ListenHandler<Soft> for Requests {
    fn request(&self, request: ConnRequest) {
        let _ = self.0.send(request);
    }
}

/// A queue pair with this context, and the events of its connection.
pub fn queue_pair(
    device: &Arc<Soft>,
    pd: &Pd,
    cq: &Arc<Cq>,
    context: u64,
    max_send_sge: u32,
) -> (Arc<Qp>, Receiver<CmEvent>) {
    queue_pair_with(device, pd, cq, &attr(context, max_send_sge))
}

/// Attributes of a queue pair for connections.
pub fn attr(context: u64, max_send_sge: u32) -> QpAttr {
    QpAttr {
        context,
        max_send_wr: 8,
        max_recv_wr: 8,
        max_send_sge,
        max_recv_sge: 1,
        max_message_size: 1 << 30,
        max_rdma_size: 1 << 30,
        max_rd_in: 4,
        max_rd_out: 4,
        recv_solicited_only: false,
        datagrams: false,
    }
}

/// A queue pair with these attributes, and its events.
pub fn queue_pair_with(
    device: &Arc<Soft>,
    pd: &Pd,
    cq: &Arc<Cq>,
    attr: &QpAttr,
) -> (Arc<Qp>, Receiver<CmEvent>) {
    let (tx, events) = channel();
    let parts = QpParts {
        pd,
        send_cq: Some(cq),
        recv_cq: Some(cq),
        srq: None,
    };
    let qp = device
        .create_qp(&parts, attr, Arc::new(Events(tx)))
        .unwrap();
    (qp, events)
}
