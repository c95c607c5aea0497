//! How requests and receives of a queue pair complete, and the order in which queued ones do.

use super::state::QpState;
use super::work_queue::{Op, Receive, Request, Transfer};
use crate::device::soft::upcalls::Upcalls;
use crate::device::{AtomicOp, Completion, RecvWr, SendOp, WcOp, WcStatus, WrFlags};
use crate::handle::pin::{self, Thread};

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
        let thread = pin::thread();
        let (wr_id, flags, len) = (request.wr_id, request.flags, request.len);
        self.complete_as(op, wr_id, flags, len, status, thread, up);
    }

    /// Completes a transfer that was not, in the running thread.
    #[inline(always)]
    pub fn complete_transfer(
        &self,
        wr_id: u64,
        transfer: &Transfer<'_>,
        status: WcStatus,
        thread: Thread,
        up: &mut Upcalls,
    ) {
        let op = wc_op(&transfer.op);
        self.complete_as(op, wr_id, transfer.flags, transfer.len, status, thread, up);
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
        let (op, thread) = (WcOp::SendDatagram, pin::thread());
        self.complete_as(op, wr_id, flags, len, status, thread, up);
    }

    #[allow(clippy::too_many_arguments)]
    #[inline(always)]
    fn complete_as(
        &self,
        op: WcOp,
        wr_id: u64,
        flags: WrFlags,
        byte_len: u32,
        status: WcStatus,
        thread: Thread,
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
            cq.push(completion, notifies, thread, up);
        }
    }

    /// Completes a request without flags that was executed, in the running thread; gives `up` with what is to be called.
    ///
    /// # Safety
    /// As [`push_plainly`](crate::device::soft::cq::Cq::push_plainly).
    #[inline(always)]
    pub unsafe fn complete_plainly(
        &self,
        op: WcOp,
        wr_id: u64,
        len: u32,
        thread: Thread,
        up: Upcalls,
    ) -> Upcalls {
        let Some(cq) = &self.id.send_cq else {
            return up;
        };
        let completion = Completion {
            context: self.id.attr.context,
            wr_id,
            op,
            from_srq: false,
            status: WcStatus::Success,
            byte_len: len,
        };
        // SAFETY: the caller's promise.
        unsafe { cq.push_plainly(completion, || true, thread, up) }
    }

    /// The same for the receive of a message without flags.
    ///
    /// # Safety
    /// As [`push_plainly`](crate::device::soft::cq::Cq::push_plainly).
    #[inline(always)]
    pub unsafe fn complete_recv_plainly(
        &self,
        receive: &Receive,
        len: u32,
        thread: Thread,
        up: Upcalls,
    ) -> Upcalls {
        let Some(cq) = &self.id.recv_cq else {
            return up;
        };
        let completion = Completion {
            context: self.id.attr.context,
            wr_id: receive.wr_id,
            op: WcOp::Recv,
            from_srq: self.id.srq.is_some(),
            status: WcStatus::Success,
            byte_len: len,
        };
        let notifies =
            || !self.id.attr.recv_solicited_only && !receive.flags.contains(WrFlags::QUIET);
        // SAFETY: the caller's promise.
        unsafe { cq.push_plainly(completion, notifies, thread, up) }
    }

    /// Completes a receive, in the running thread.
    #[allow(clippy::too_many_arguments)]
    #[inline(always)]
    pub fn complete_recv(
        &self,
        receive: &Receive,
        status: WcStatus,
        len: u32,
        solicited: bool,
        op: WcOp,
        thread: Thread,
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
            cq.push(completion, notifies, thread, up);
        }
    }

    /// Completes a receive that is posted after the end of the connection.
    #[cold]
    #[inline(never)]
    pub fn flush_recv(&self, wr: &RecvWr<'_>, up: &mut Upcalls) {
        let (status, op) = (WcStatus::Flushed, WcOp::Recv);
        let (receive, thread) = (Receive::of(wr), pin::thread());
        self.complete_recv(&receive, status, 0, false, op, thread, up);
    }

    /// The receive at the head of the queue failed.
    pub fn fail_recv(&mut self, status: WcStatus, up: &mut Upcalls) {
        if let Some(receive) = self.rq.pop() {
            let (op, thread) = (WcOp::Recv, pin::thread());
            self.complete_recv(&receive, status, 0, false, op, thread, up);
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
