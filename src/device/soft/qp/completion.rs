//! How requests and receives of a queue pair complete, and the order in which queued ones do.

use super::state::QpState;
use super::work_queue::{Op, Receive, Request, Transfer};
use crate::device::soft::upcalls::Upcalls;
use crate::device::{AtomicOp, Completion, RecvWr, SendOp, WcOp, WcStatus, WrFlags};

/// The operation in a completion.
#[inline]
fn wc_op(op: &SendOp) -> WcOp {
    match op {
        SendOp::Send | SendOp::SendInvalidate { .. } => WcOp::Send,
        SendOp::RdmaWrite(_) => WcOp::RdmaWrite,
        SendOp::RdmaRead { .. } => WcOp::RdmaRead,
        SendOp::RdmaWriteImm { .. } => WcOp::RdmaWriteImm,
        SendOp::Atomic { op, .. } => match op {
            AtomicOp::FetchAdd { .. } => WcOp::FetchAdd,
            AtomicOp::CompareSwap { .. } => WcOp::CompareSwap,
        },
    }
}

impl QpState {
    /// Completes a request that was queued.
    #[inline(never)]
    pub fn complete(&self, request: &Request, status: WcStatus, up: &mut Upcalls) {
        let op = match &request.op {
            Op::Transfer(op) => wc_op(op),
            Op::Bind { context } => WcOp::Bind { context: *context },
        };
        self.complete_as(op, request.wr_id, request.flags, request.len, status, up);
    }

    /// Completes a transfer that was not.
    #[inline(always)]
    pub fn complete_transfer(
        &self,
        wr_id: u64,
        transfer: &Transfer<'_>,
        status: WcStatus,
        up: &mut Upcalls,
    ) {
        let op = wc_op(&transfer.op);
        self.complete_as(op, wr_id, transfer.flags, transfer.len, status, up);
    }

    /// Completes a datagram.
    pub fn complete_datagram(
        &self,
        wr_id: u64,
        flags: WrFlags,
        len: u32,
        status: WcStatus,
        up: &mut Upcalls,
    ) {
        self.complete_as(WcOp::SendDatagram, wr_id, flags, len, status, up);
    }

    #[inline(always)]
    fn complete_as(
        &self,
        op: WcOp,
        wr_id: u64,
        flags: WrFlags,
        byte_len: u32,
        status: WcStatus,
        up: &mut Upcalls,
    ) {
        let success = status == WcStatus::Success;
        if success && flags.contains(WrFlags::UNSIGNALED) {
            return;
        }
        if let Some(cq) = &self.id.send_cq {
            let completion = Completion {
                context: self.id.attr.context,
                wr_id,
                op,
                from_srq: false,
                status,
                byte_len,
            };
            let notifies = || !success || !flags.contains(WrFlags::QUIET);
            cq.push(completion, notifies, up);
        }
    }

    /// Completes a receive.
    #[inline(always)]
    pub fn complete_recv(
        &self,
        receive: &Receive,
        status: WcStatus,
        len: u32,
        solicited: bool,
        op: WcOp,
        up: &mut Upcalls,
    ) {
        if let Some(cq) = &self.id.recv_cq {
            let completion = Completion {
                context: self.id.attr.context,
                wr_id: receive.wr_id,
                op,
                from_srq: self.id.srq.is_some(),
                status,
                byte_len: len,
            };
            let notifies = || {
                if status != WcStatus::Success {
                    true
                } else if self.id.attr.recv_solicited_only {
                    solicited
                } else {
                    !receive.flags.contains(WrFlags::QUIET)
                }
            };
            cq.push(completion, notifies, up);
        }
    }

    /// Completes a receive that is posted after the end of the connection.
    #[cold]
    #[inline(never)]
    pub fn flush_recv(&self, wr: &RecvWr<'_>, up: &mut Upcalls) {
        let (status, op) = (WcStatus::Flushed, WcOp::Recv);
        self.complete_recv(&Receive::of(wr), status, 0, false, op, up);
    }

    /// The receive at the head of the queue failed.
    pub fn fail_recv(&mut self, status: WcStatus, up: &mut Upcalls) {
        if let Some(receive) = self.rq.pop() {
            self.complete_recv(&receive, status, 0, false, WcOp::Recv, up);
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
}
