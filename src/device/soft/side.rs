//! One end of a connection: the state of a queue pair and its two work queues.

use std::net::SocketAddr;
use std::sync::Arc;

use super::cq::Cq;
use super::mr;
use super::queue::{Receive, Request, Ring};
use super::upcall::{Events, Upcalls};
use crate::device::{
    Access, CmEvent, Completion, PostError, QpAttr, RecvWr, SendOp, SendWr, Sge, WcOp, WcStatus,
    WrFlags,
};
use crate::handle::Guard;

/// Bytes of one message or RDMA operation.
pub(super) const MAX_MESSAGE: u32 = 1 << 30;

/// Where a queue pair is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// As created.
    Idle,
    /// On the way to a connection, on either side.
    Connecting,
    /// Data flows.
    Connected,
    /// A graceful end waits for the requests that were queued.
    Closing,
    /// The connection, or the attempt, is over.
    Ended,
    /// Destroyed.
    Gone,
}

/// What does not change about a queue pair.
pub(super) struct Identity {
    pub attr: QpAttr,
    pub pd: u32,
    pub send_cq: Option<Arc<Cq>>,
    pub recv_cq: Option<Arc<Cq>>,
    pub events: Arc<Events>,
}

/// What changes. Guarded by the lock of the [`Lane`](super::qp::Lane) it sits in.
pub(super) struct Side {
    pub id: Arc<Identity>,
    pub phase: Phase,
    /// Counts attempts to connect, so that the outcome of one is not taken for another's.
    pub attempt: u64,
    pub sq: Ring<Request>,
    pub rq: Ring<Receive>,
    /// A graceful end waits until the send queue has got here.
    pub close_at: Option<u64>,
    /// RDMA reads that may be outstanding, as negotiated.
    pub ord: u32,
    /// Local and remote address.
    pub addrs: Option<(SocketAddr, SocketAddr)>,
}

/// The operation in a completion.
pub(super) fn wc_op(op: &SendOp) -> WcOp {
    match op {
        SendOp::Send | SendOp::SendInvalidate { .. } => WcOp::Send,
        SendOp::RdmaWrite(_) => WcOp::RdmaWrite,
        SendOp::RdmaRead { .. } => WcOp::RdmaRead,
    }
}

/// What a request needs of its local segments.
pub(super) fn local_access(op: &SendOp) -> Access {
    match op {
        SendOp::RdmaRead { .. } => Access::LOCAL_WRITE,
        _ => Access::LOCAL_READ,
    }
}

fn total(sges: &[Sge]) -> u64 {
    sges.iter().map(|s| u64::from(s.len)).sum()
}

impl Side {
    pub fn new(id: Arc<Identity>) -> Side {
        let attr = &id.attr;
        Side {
            phase: Phase::Idle,
            attempt: 0,
            sq: Ring::new(attr.max_send_wr, attr.max_send_sge),
            rq: Ring::new(attr.max_recv_wr, attr.max_recv_sge),
            close_at: None,
            ord: 0,
            addrs: None,
            id,
        }
    }

    /// Whether data flows.
    pub fn is_up(&self) -> bool {
        matches!(self.phase, Phase::Connected | Phase::Closing)
    }

    /// The request of `wr`, if it may be queued.
    #[inline]
    pub fn admit_send(&self, wr: &SendWr<'_>, guard: &Guard) -> Result<Request, PostError> {
        if matches!(self.phase, Phase::Idle | Phase::Connecting | Phase::Gone) {
            return Err(PostError::NotConnected);
        }
        if self.id.send_cq.is_none() || self.sq.is_full() {
            return Err(PostError::QueueFull);
        }
        if wr.sges.len() > self.id.attr.max_send_sge as usize {
            return Err(PostError::TooManySegments);
        }
        mr::check_all(wr.sges, self.id.pd, local_access(&wr.op), guard)?;
        let bytes = total(wr.sges);
        let len = match wr.op {
            SendOp::RdmaRead { len, .. } if u64::from(len) > bytes => {
                return Err(PostError::Length);
            }
            SendOp::RdmaRead { len, .. } => u64::from(len),
            _ => bytes,
        };
        if len > u64::from(MAX_MESSAGE) {
            return Err(PostError::Length);
        }
        Ok(Request {
            wr_id: wr.wr_id,
            op: wr.op,
            flags: wr.flags,
            len: len as u32,
            done: false,
        })
    }

    /// The receive of `wr`, if it may be queued.
    #[inline]
    pub fn admit_recv(&self, wr: &RecvWr<'_>, guard: &Guard) -> Result<Receive, PostError> {
        if self.phase == Phase::Gone || self.id.recv_cq.is_none() || self.rq.is_full() {
            return Err(PostError::QueueFull);
        }
        if wr.sges.len() > self.id.attr.max_recv_sge as usize {
            return Err(PostError::TooManySegments);
        }
        mr::check_all(wr.sges, self.id.pd, Access::LOCAL_WRITE, guard)?;
        Ok(Receive {
            wr_id: wr.wr_id,
            flags: wr.flags,
            len: total(wr.sges),
        })
    }

    /// Completes a request.
    #[inline]
    pub fn complete(&self, request: &Request, status: WcStatus, up: &mut Upcalls) {
        let success = status == WcStatus::Success;
        if success && request.flags.contains(WrFlags::UNSIGNALED) {
            return;
        }
        if let Some(cq) = &self.id.send_cq {
            let completion = Completion {
                context: self.id.attr.context,
                wr_id: request.wr_id,
                op: wc_op(&request.op),
                status,
                byte_len: request.len,
            };
            let notifies = !success || !request.flags.contains(WrFlags::QUIET);
            cq.push(completion, notifies, up);
        }
    }

    /// Completes a receive. `invalidated` is the key that its message took away.
    #[inline]
    pub fn complete_recv(
        &self,
        receive: &Receive,
        status: WcStatus,
        len: u32,
        solicited: bool,
        invalidated: Option<u32>,
        up: &mut Upcalls,
    ) {
        if let Some(cq) = &self.id.recv_cq {
            let completion = Completion {
                context: self.id.attr.context,
                wr_id: receive.wr_id,
                op: invalidated.map_or(WcOp::Recv, |rkey| WcOp::RecvInvalidate { rkey }),
                status,
                byte_len: len,
            };
            let notifies = if status != WcStatus::Success {
                true
            } else if self.id.attr.recv_solicited_only {
                solicited
            } else {
                !receive.flags.contains(WrFlags::QUIET)
            };
            cq.push(completion, notifies, up);
        }
    }

    /// The receive at the head of the queue failed.
    pub fn fail_recv(&mut self, status: WcStatus, up: &mut Upcalls) {
        if let Some(receive) = self.rq.pop() {
            self.complete_recv(&receive, status, 0, false, None, up);
        }
    }

    /// Completes the oldest requests, as far as they are executed.
    pub fn retire(&mut self, up: &mut Upcalls) {
        while let Some((request, _)) = self.sq.front() {
            if !request.done {
                return;
            }
            let request = *request;
            self.sq.pop();
            self.complete(&request, WcStatus::Success, up);
        }
    }

    /// A request failed; those before it are flushed.
    pub fn fail_request(&mut self, number: u64, status: WcStatus, up: &mut Upcalls) {
        while self.sq.head() <= number {
            let last = self.sq.head() == number;
            let Some(request) = self.sq.pop() else {
                return;
            };
            let status = if last { status } else { WcStatus::Flushed };
            self.complete(&request, status, up);
        }
    }

    /// Completes everything outstanding as flushed, in the order of posting.
    fn flush(&mut self, up: &mut Upcalls) {
        while let Some(request) = self.sq.pop() {
            self.complete(&request, WcStatus::Flushed, up);
        }
        while self.rq.front().is_some() {
            self.fail_recv(WcStatus::Flushed, up);
        }
    }

    /// Ends the connection or the attempt, unless there is none.
    pub fn end(&mut self, event: CmEvent, up: &mut Upcalls) {
        if matches!(self.phase, Phase::Idle | Phase::Ended | Phase::Gone) {
            return;
        }
        self.phase = Phase::Ended;
        self.close_at = None;
        self.flush(up);
        up.event(&self.id.events, event);
    }

    /// Forgets connection and work without a trace.
    pub fn clear(&mut self, phase: Phase) {
        let attr = &self.id.attr;
        self.sq = Ring::new(attr.max_send_wr, attr.max_send_sge);
        self.rq = Ring::new(attr.max_recv_wr, attr.max_recv_sge);
        self.phase = phase;
        self.attempt += 1;
        self.close_at = None;
        self.addrs = None;
    }

    /// Data flows from now on.
    pub fn establish(&mut self, private_data: Box<[u8]>, up: &mut Upcalls) {
        self.phase = Phase::Connected;
        up.event(&self.id.events, CmEvent::Established { private_data });
    }
}
